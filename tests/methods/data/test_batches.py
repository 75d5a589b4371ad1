"""The batches of training: the same for every number of workers and after every resume."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from sts_core.errors import ConfigError
from sts_methods import (
    Batch,
    ByolConfig,
    DataConfig,
    MoCoConfig,
    TrainingConfig,
    TrainingData,
    build_training_data,
    evaluation_data,
)
from sts_methods.data.datasets import dataset_record, open_source
from sts_methods.training.data import build_data

RECIPES = ("byol", "moco", "fixmatch", "mean_teacher", "dino")


def digits(recipe: str, **changes: object) -> DataConfig:
    labels = 40 if recipe in ("fixmatch", "mean_teacher") else None
    settings = {"image_size": 16, "views": recipe, "num_labels": labels, "unlabelled_ratio": 2, "num_local_crops": 2}
    return DataConfig(**(settings | changes))  # type: ignore[arg-type]


def build(config: DataConfig, **places: int) -> TrainingData:
    return build_training_data(config, seed=7, **({"global_batch_size": 16} | places))  # type: ignore[arg-type]


def step(data: TrainingData, number: int) -> tuple[Batch, ...]:
    return next(data.steps(number))


def tensors(batch: Batch) -> list[torch.Tensor]:
    return [x for x in (*batch.views, batch.indices, batch.labelled, batch.labels) if x is not None]


def assert_same(one: list[torch.Tensor], two: list[torch.Tensor]) -> None:
    assert len(one) == len(two)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("world_size", [2, 8])
def test_the_global_batch_is_the_same_for_every_number_of_workers(recipe: str, world_size: int) -> None:
    config = digits(recipe)
    (whole,) = step(build(config), 91)
    ranks = [step(build(config, rank=r, world_size=world_size), 91)[0] for r in range(world_size)]
    joined = [torch.cat(parts) for parts in zip(*map(tensors, ranks), strict=True)]
    assert_same(joined, tensors(whole))


@pytest.mark.parametrize("recipe", RECIPES)
def test_micro_batches_make_up_the_same_global_batch(recipe: str) -> None:
    config = digits(recipe)
    (whole,) = step(build(config), 5)
    micro = step(build(config, accumulation=4), 5)
    assert len(micro) == 4
    assert_same([torch.cat(parts) for parts in zip(*map(tensors, micro), strict=True)], tensors(whole))


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_resume_in_mid_epoch_continues_with_the_same_batches(recipe: str) -> None:
    config = digits(recipe)
    running = build(config).steps(0)
    batches = [next(running)[0] for _ in range(5)]
    resumed = build(config).steps(3)
    for number in (3, 4):
        (batch,) = next(resumed)
        assert batch.step == number
        assert_same(tensors(batch), tensors(batches[number]))


def test_seed_epoch_and_view_all_change_the_views() -> None:
    data = build(digits("moco"))
    (batch,) = step(data, 0)
    (other_seed,) = next(build_training_data(digits("moco"), seed=8, global_batch_size=16).steps(0))
    assert not torch.equal(batch.views[0], batch.views[1])
    assert not torch.equal(batch.views[0], other_seed.views[0])
    positions = {int(i): k for k, i in enumerate(batch.indices)}
    for later in range(data.steps_per_epoch, 2 * data.steps_per_epoch):
        (again,) = step(data, later)
        for row, index in enumerate(again.indices.tolist()):
            if index in positions:
                assert not torch.equal(again.views[0][row], batch.views[0][positions[index]])
                return
    pytest.fail("no image of the first batch came back in the second epoch")


@pytest.mark.parametrize("recipe", ["byol", "dino"])
def test_batched_and_picture_by_picture_views_agree_up_to_rounding(recipe: str) -> None:
    (one,) = step(build(digits(recipe, device_augmentation=False)), 3)
    (two,) = step(build(digits(recipe, device_augmentation=True)), 3)
    for a, b in zip(one.views, two.views, strict=True):
        assert (a - b).abs().mean() * 0.376 * 255 < 0.6


def test_views_are_normalised_floats_in_channels_last_order() -> None:
    for recipe in ("byol", "fixmatch"):
        (batch,) = step(build(digits(recipe)), 0)
        for view in batch.views:
            assert view.dtype == torch.float32
            assert view.shape[1:] == (3, 16, 16)
            assert view.is_contiguous(memory_format=torch.channels_last)
            assert abs(view.mean().item()) < 1.0
            assert 0.3 < view.std().item() < 2.0


def test_fixmatch_batches_hold_mu_times_as_many_unlabelled_images_and_only_split_labels() -> None:
    data = build(digits("fixmatch", unlabelled_ratio=3))
    (batch,) = step(data, 2)
    train, _ = evaluation_data(digits("fixmatch"))
    assert data.label_split is not None
    assert batch.labelled is not None
    assert batch.labels is not None
    assert len(batch.views[0]) == len(batch.views[1]) == 48
    assert len(batch.labelled) == len(batch.labels) == 16
    assert data.steps_per_epoch == len(train) // 48
    assert np.bincount(train.targets[data.label_split.indices]).tolist() == [4] * 10
    assert data.num_classes == 10
    assert data.num_samples == len(train)


def test_dino_crops_are_two_global_and_the_asked_number_of_local_ones() -> None:
    (batch,) = step(build(digits("dino", image_size=32)), 0)
    assert [tuple(view.shape[2:]) for view in batch.views] == [(32, 32)] * 2 + [(16, 16)] * 2


def test_evaluation_sets_are_disjoint_labelled_and_not_augmented() -> None:
    train, test = evaluation_data(digits("byol"))
    assert len(train) + len(test) == 1797
    assert train.num_classes == test.num_classes == 10
    assert train.classes == tuple("0123456789")
    image, label = test[3]
    assert image.shape == (3, 16, 16)
    assert image.dtype == torch.float32
    assert label in range(10)
    assert torch.equal(image, test[3][0])
    inside = {x.numpy().tobytes() for x, _ in (train[i] for i in range(len(train)))}
    assert sum(test[i][0].numpy().tobytes() in inside for i in range(len(test))) <= 2


def save_arrays(path: Path, **changes: np.ndarray) -> DataConfig:
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        f"x_{s}": rng.integers(0, 256, (40, 12, 12, 3), dtype=np.uint8) for s in ("train", "test")
    }
    arrays |= {f"y_{s}": np.arange(40) % 4 for s in ("train", "test")}
    np.savez(path, **(arrays | changes))
    return DataConfig(dataset="arrays", root=str(path), image_size=16, views="moco")


def test_the_home_folder_may_be_written_as_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_arrays(tmp_path / "a.npz")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert dataset_record("arrays").in_place("~/a.npz", "train")
    assert len(open_source("arrays", "~/a.npz", "train", image_size=16)) == 40


def test_own_images_are_normalised_as_told_and_not_silently_as_imagenets(tmp_path: Path) -> None:
    gray = np.full((40, 12, 12), 51, dtype=np.uint8)
    gray[:, :6] = 153
    config = save_arrays(tmp_path / "a.npz", x_train=gray, x_test=gray)
    note = build(config).note
    assert note is not None
    assert "theirs are 0.400,0.400,0.400 and 0.200,0.200,0.200 (data.mean and data.std" in note
    told = replace(config, mean=(0.4,) * 3, std=(0.2,) * 3)
    assert build(told).note is None
    for images in (evaluation_data(told)[0], evaluation_data(told)[1]):
        pixels = torch.stack([image for image, _ in images])
        assert abs(float(pixels.mean())) < 0.02
        assert abs(float(pixels.std()) - 1) < 0.05
    assert build(DataConfig(image_size=16)).note is None  # digits know theirs
    with pytest.raises(ConfigError, match="mean and std must be three numbers each"):
        replace(config, std=(0.0, 0.2, 0.2))


def test_arrays_of_any_size_and_of_gray_images_are_accepted(tmp_path: Path) -> None:
    gray = np.random.default_rng(1).integers(0, 256, (40, 12, 12), dtype=np.uint8)
    config = save_arrays(tmp_path / "a.npz", x_train=gray)
    data = build(config)
    (batch,) = step(data, 0)
    assert batch.views[0].shape == (16, 3, 16, 16)
    assert data.num_classes == 4
    (batch,) = step(build(replace(config, views="mean_teacher", unlabelled_ratio=2)), 0)
    assert batch.views[1].shape == (32, 3, 16, 16)


@pytest.mark.parametrize("recipe", ["fixmatch", "mean_teacher"])
def test_labels_and_indices_belong_to_their_images(tmp_path: Path, recipe: str) -> None:
    """Every image has one colour of its own, which a flip and a shift leave as it is."""
    shade = np.arange(40, dtype=np.uint8) * 6
    config = save_arrays(tmp_path / "a.npz", x_train=np.broadcast_to(shade[:, None, None], (40, 16, 16)).copy())
    (batch,) = step(build(replace(config, views=recipe, unlabelled_ratio=2, num_labels=8)), 3)  # type: ignore[arg-type]
    assert batch.labelled is not None
    assert batch.labels is not None

    def index(view: torch.Tensor) -> torch.Tensor:
        return ((view[:, 0, 8, 8] * 0.229 + 0.485) * 255 / 6).round().long()

    assert torch.equal(index(batch.views[0]), batch.indices)
    assert torch.equal(index(batch.labelled) % 4, batch.labels)
    if recipe == "mean_teacher":
        assert torch.equal(index(batch.teachers_labelled_part()), index(batch.labelled))


def test_mean_teacher_sees_labelled_images_in_two_views_and_fixmatch_in_one() -> None:
    data = DataConfig(views="mean_teacher", num_labels=40, unlabelled_ratio=2)
    (batch,) = step(build(data), 0)
    assert batch.labelled is not None
    assert batch.teachers_labelled_part().shape == batch.labelled.shape
    assert not torch.equal(batch.teachers_labelled_part(), batch.labelled)
    (other,) = step(build(replace(data, views="fixmatch")), 0)
    assert other.teachers_labelled is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": np.zeros((4, 8, 8, 3), dtype=np.float32)}, "uint8"),
        ({"x_train": np.zeros((0, 8, 8, 3), dtype=np.uint8)}, "at least one image"),
        ({"x_train": np.array([np.zeros(2), None], dtype=object)}, "x_train cannot be read"),
        ({"y_train": np.arange(3)}, "one label per image"),
        ({"y_train": np.array(["cat", "dog"] * 20)}, "got <U3 among its labels"),
        ({"y_train": np.arange(40) / 10}, "got float64 among its labels"),
        ({"y_train": np.arange(40) - 1}, "got -1 among its labels"),
    ],
)
def test_unfit_arrays_are_refused(tmp_path: Path, changes: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(save_arrays(tmp_path / "a.npz", **changes))


@pytest.mark.parametrize("damage", ["garbage", "empty", "npy", "truncated"])
def test_a_file_that_is_no_whole_npz_is_refused_in_one_sentence(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a.npz"
    config = save_arrays(path)
    np.save(tmp_path / "a.npy", np.zeros(3))
    content = {"garbage": b"not a zip", "empty": b"", "npy": (tmp_path / "a.npy").read_bytes()}
    path.write_bytes(content.get(damage, path.read_bytes()[:5000]))
    with pytest.raises(ConfigError, match="reads one whole npz file"):
        build(config)


def test_an_npz_with_a_damaged_array_is_refused(tmp_path: Path) -> None:
    config = save_arrays(tmp_path / "a.npz")
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[1000] ^= 1
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(ConfigError, match="x_train cannot be read"):
        build(config)


def test_a_fingerprint_tells_pixels_and_labels_apart_and_not_sizes(tmp_path: Path) -> None:
    def fingerprint(size: int = 12, **changes: np.ndarray) -> str:
        root = save_arrays(tmp_path / "a.npz", **changes).root
        return open_source("arrays", root, "train", image_size=size).resized(size).fingerprint()  # type: ignore[union-attr]

    first = fingerprint()
    assert first.startswith("40 images, sha256 ")
    assert fingerprint() == fingerprint(size=20) == first
    assert fingerprint(x_train=np.zeros((40, 12, 12, 3), np.uint8)) != first
    assert fingerprint(y_train=np.arange(40) % 5) != first


@pytest.mark.parametrize(
    "changes",
    [
        {"dataset": "imagenet"},
        {"views": "simclr"},
        {"on_error": "ignore"},
        {"image_size": 4},
        {"unlabelled_ratio": 0},
        {"crop_scale_min": 0.0},
        {"num_labels": 40, "views": "byol"},
    ],
)
def test_a_config_outside_its_domain_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes))):
        DataConfig(**changes)  # type: ignore[arg-type]


def test_a_batch_that_does_not_divide_and_a_missing_root_are_refused() -> None:
    with pytest.raises(ConfigError, match="multiple of accumulation=3"):
        build(digits("byol"), accumulation=3)
    with pytest.raises(ConfigError, match="set root"):
        build(DataConfig(dataset="imagefolder"))


def test_a_batch_is_shared_unevenly_only_for_methods_that_take_it() -> None:
    one_of_three = SimpleNamespace(rank=0, world_size=3, device=torch.device("cpu"))
    options = {"data": digits("byol"), "global_batch_size": 32, "steps": 1}
    byol = build_data(TrainingConfig(method=ByolConfig(), **options), one_of_three)  # type: ignore[arg-type]
    (batch,) = next(byol.steps())
    assert byol.shares == batch.shares == (10, 11, 11)
    assert batch.weight == 10 * 3 / 32
    with pytest.raises(ConfigError, match="gives the workers 10, 11, 11 images"):
        build_data(TrainingConfig(method=MoCoConfig(), **options), one_of_three)  # type: ignore[arg-type]


def test_the_smallest_crop_can_be_overridden() -> None:
    views = digits("byol", crop_scale_min=0.9).make_views()
    assert all(view.crop_scale == (0.9, 1.0) for view in views)  # type: ignore[union-attr]
