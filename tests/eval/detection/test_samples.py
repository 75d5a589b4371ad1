"""What is trained on, and when, depends on (seed, iteration) and on nothing else."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from sts_core.errors import ConfigError
from sts_eval.detection import read_voc_split, samples
from sts_eval.detection.errors import VocError
from sts_eval.detection.samples import TestSamples, TrainingVisits, make_sample, resized_shape, visiting_order
from sts_eval.detection.synthetic import narrow_config, write_synthetic_voc


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return write_synthetic_voc(tmp_path_factory.mktemp("voc"), splits={"trainval": 7})


@pytest.fixture
def images(tree):
    return read_voc_split(tree, "voc_2007_trainval").images


@pytest.fixture
def config(tree):
    return narrow_config(tree, iterations=12)


def as_tuples(batch):
    return [(sample.image_id, sample.key, sample.image.sum().item(), sample.boxes.tolist()) for sample in batch]


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [
        (375, 500, (600, 800)),
        (500, 375, (800, 600)),
        (333, 500, (600, 901)),
        (100, 1000, (133, 1333)),
        (64, 64, (600, 600)),
    ],
)
def test_the_short_side_is_met_unless_the_long_side_would_be_too_long(height, width, expected):
    assert resized_shape(height, width, short_side=600, max_size=1333) == expected


def test_boxes_follow_the_image_when_it_is_resized(images):
    sample = make_sample(images[0], short_side=256, max_size=1000, flip=False, key=0)
    assert sample.image.shape == (3, 256, 320)
    assert sample.image.dtype == torch.uint8
    assert sample.boxes.tolist() == (images[0].boxes * 2).tolist()


def test_mirroring_twice_gives_the_image_and_boxes_back(images):
    plain = make_sample(images[1], short_side=160, max_size=1000, flip=False, key=0)
    mirrored = make_sample(images[1], short_side=160, max_size=1000, flip=True, key=0)
    assert torch.equal(mirrored.image.flip(2), plain.image)
    width = plain.image.shape[2]
    assert torch.allclose(width - mirrored.boxes[:, [2, 0]], plain.boxes[:, [0, 2]])
    assert torch.equal(mirrored.boxes[:, [1, 3]], plain.boxes[:, [1, 3]])


def test_a_group_never_mixes_landscape_and_portrait(images):
    order = visiting_order(images, seed=0, group_size=2, length=200)
    landscape = np.array([image.width > image.height for image in images])[order].reshape(-1, 2)
    assert (landscape[:, 0] == landscape[:, 1]).all()


def test_every_image_is_visited_equally_often(images):
    counts = np.bincount(visiting_order(images, seed=0, group_size=2, length=7 * 20), minlength=7)
    assert counts.min() >= 19
    assert counts.max() <= 21


def test_a_longer_order_begins_with_the_shorter_one(images):
    long, short = (visiting_order(images, seed=5, group_size=2, length=length) for length in (100, 31))
    assert long[:31].tolist() == short.tolist()
    assert visiting_order(images, seed=6, group_size=2, length=31).tolist() != short.tolist()


def test_a_batch_depends_on_its_iteration_and_not_on_where_reading_began(images, config):
    visits = TrainingVisits(images, config)
    whole = [as_tuples(batch) for batch in visits.batches(0, 6)]
    late = [as_tuples(batch) for batch in TrainingVisits(images, config).batches(4, 6)]
    assert late == whole[4:]


def test_another_seed_gives_other_batches(images, config):
    first, other = (
        as_tuples(next(TrainingVisits(images, replace(config, seed=seed)).batches(0, 1))) for seed in (0, 1)
    )
    assert first != other


def test_loader_processes_change_nothing(images, config):
    alone = [as_tuples(batch) for batch in TrainingVisits(images, config).batches(0, 3)]
    helped = [as_tuples(batch) for batch in TrainingVisits(images, replace(config, num_workers=1)).batches(0, 3)]
    assert helped == alone


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_unreadable_image_is_one_sentence_whoever_reads_it(images, config, num_workers, tmp_path):
    damaged = [replace(image, path=tmp_path / "gone.jpg") for image in images]
    changed = replace(config, num_workers=num_workers)
    for batches in (TrainingVisits(damaged, changed).batches(0, 1), TestSamples(damaged, changed).of_this_worker()):
        with pytest.raises(VocError, match=r"an image must be readable, got .*gone\.jpg") as caught:
            next(batches)
        assert "\n" not in str(caught.value)


def test_reading_batches_leaves_the_global_generators_alone(images, config):
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    list(TrainingVisits(images, config).batches(0, 2))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()


def test_the_workers_shares_are_the_global_batch_in_order(images, config, monkeypatch):
    whole = [as_tuples(batch) for batch in TrainingVisits(images, config).batches(0, 3)]
    shares = []
    for worker in range(2):
        monkeypatch.setattr(samples, "rank", lambda worker=worker: worker)
        monkeypatch.setattr(samples, "world_size", lambda: 2)
        shares.append([as_tuples(batch) for batch in TrainingVisits(images, config).batches(0, 3)])
    assert [first + second for first, second in zip(*shares, strict=True)] == whole


def test_all_sizes_and_both_orientations_occur(images, config):
    visits = TrainingVisits(images, replace(config, train_sizes=(96, 112, 128)))
    seen = list(itertools.islice((visits[index] for index in range(len(visits))), 60))
    assert {min(sample.image.shape[1:]) for sample in seen} == {96, 112, 128}
    assert len({sample.key for sample in seen}) == len(seen)
    lefts = {sample.boxes[0, 0].item() < sample.image.shape[2] / 2 - 48 for sample in seen if len(sample.boxes) == 1}
    assert lefts == {True, False}


def test_images_without_objects_are_not_trained_on(images, config):
    empty = replace(images[0], boxes=np.zeros((0, 4)), classes=np.zeros(0, dtype=np.int64))
    assert images[0].image_id not in {image.image_id for image in TrainingVisits([empty, *images[1:]], config).images}
    with pytest.raises(ConfigError, match="training needs an image with an object"):
        TrainingVisits([empty], config)


def test_test_samples_cover_every_image_once_at_the_test_size(images, config):
    batches = list(TestSamples(images, config).of_this_worker())
    assert [sample.image_id for batch in batches for sample in batch] == [image.image_id for image in images]
    assert {min(sample.image.shape[1:]) for batch in batches for sample in batch} == {192}
