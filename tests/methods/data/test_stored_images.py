"""Shards and tables, on a disk or in an object store, keep the contracts of files: the same batch for everybody."""

import logging
import os
import pickle
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sts_core import ConfigError
from sts_methods import Batch, DataConfig, ImageReadError, TrainingData, build_training_data, evaluation_data
from sts_methods.data.image_files import decode, read_image
from sts_methods.data.sources import StoredImages
from tests.methods.data.stored_images import NUM_IMAGES, jpeg, samples, write_shards, write_tables, write_tar
from tests.object_store import served

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),  # on a machine with one core
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),  # Python from 3.12 on
]

KINDS = ("webdataset", "s3", "arrow", "parquet")


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, DataConfig]]:
    """A config for each kind, of the same images."""
    base = tmp_path_factory.mktemp("stored")
    settings = {"image_size": 32, "views": "moco", "cache_folder": str(base / "cache")}
    roots = {"webdataset": str(write_shards(base / "shards"))}
    roots |= {suffix: str(write_tables(base / suffix, suffix)) for suffix in ("arrow", "parquet")}
    with served(base / "shards") as (uri, _):
        roots["s3"] = uri
        yield {
            kind: DataConfig(
                dataset="huggingface" if kind in ("arrow", "parquet") else "webdataset", root=root, **settings
            )  # type: ignore[arg-type]
            for kind, root in roots.items()
        }


def config_of(root: Path, **changes: object) -> DataConfig:
    """Of shards that a test may damage, with a cache of their own."""
    settings = {"dataset": "webdataset", "image_size": 32, "views": "moco", "cache_folder": str(root.parent / "cache")}
    return DataConfig(root=str(root), **(settings | changes))  # type: ignore[arg-type]


def opened(config: DataConfig, split: str = "train") -> StoredImages:
    source = config.open(split)  # type: ignore[arg-type]
    assert isinstance(source, StoredImages)
    return source


def build(config: DataConfig, **places: int) -> TrainingData:
    return build_training_data(config, seed=3, **({"global_batch_size": 8} | places))  # type: ignore[arg-type]


def batches(data: TrainingData, num: int, start: int = 0) -> list[Batch]:
    steps = data.steps(start)
    return [next(steps)[0] for _ in range(num)]


@pytest.mark.parametrize("kind", KINDS)
def test_images_classes_and_order_are_those_that_were_written(pristine: dict[str, DataConfig], kind: str) -> None:
    for split, first, num in (("train", 0, NUM_IMAGES), ("test", 100, 6)):
        source = opened(pristine[kind], split)
        assert len(source) == num
        assert source.classes == (("cat", "dog", "owl") if kind in ("arrow", "parquet") else ("0", "1", "2"))
        assert source.labels is not None
        assert source.labels.tolist() == [n % 3 for n in range(first, first + num)]
        assert all(np.array_equal(read_image(source, n), decode(jpeg(first + n))) for n in range(num))


@pytest.mark.parametrize("kind", KINDS)
def test_the_global_batch_is_the_same_for_1_2_and_8_workers_and_with_loader_processes(
    pristine: dict[str, DataConfig], kind: str
) -> None:
    config = pristine[kind]
    whole = batches(build(config), 4)
    for world_size in (2, 8):
        (micro,) = zip(
            *(batches(build(config, rank=r, world_size=world_size), 1, 3) for r in range(world_size)), strict=True
        )
        for number, view in enumerate(whole[3].views):
            assert torch.equal(torch.cat([batch.views[number] for batch in micro]), view)
    with_two = batches(build(replace(config, num_workers=2)), 4)
    for one, two in zip(whole, with_two, strict=True):
        assert torch.equal(one.indices, two.indices)
        assert all(torch.equal(a, b) for a, b in zip(one.views, two.views, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_give_the_same_batches(pristine: dict[str, DataConfig], kind: str) -> None:
    (one,), (other,) = batches(build(pristine["webdataset"]), 1), batches(build(pristine[kind]), 1)
    assert all(torch.equal(a, b) for a, b in zip(one.views, other.views, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_another_process_opens_the_files_for_itself(pristine: dict[str, DataConfig], kind: str) -> None:
    source = opened(pristine[kind])
    source.encoded(3)
    there = pickle.loads(pickle.dumps(source))  # noqa: S301 - what a spawned loader process is given
    assert there.encoded(3) == source.encoded(3)
    assert len(pickle.dumps(source)) < 20_000, "no file or client travels"


@pytest.mark.parametrize("kind", KINDS)
def test_evaluation_shows_the_images_of_both_splits(pristine: dict[str, DataConfig], kind: str) -> None:
    train, test = evaluation_data(pristine[kind])
    assert (len(train), len(test), test.num_classes) == (NUM_IMAGES, 6, 3)
    image, label = test[5]
    assert (image.shape, label) == ((3, 32, 32), 105 % 3)


def test_whole_images_are_there_for_probes_that_crop_them(tmp_path: Path) -> None:
    content = samples()
    content["00003"]["jpg"] = b"no image at all"
    config = config_of(write_shards(tmp_path / "shards"))
    write_tar(tmp_path / "shards" / "photos-train-0000.tar", dict(list(content.items())[:5]))
    whole = evaluation_data(replace(config, on_error="skip"))[0].whole()
    assert whole is not None
    for index, shown in ((2, 2), (3, 4)):
        image, label = whole[index]
        assert np.array_equal(np.asarray(image), decode(jpeg(shown)))
        assert label == shown % 3
    assert (len(whole), whole.classes) == (NUM_IMAGES, ("0", "1", "2"))
    assert evaluation_data(DataConfig())[0].whole() is None


def test_a_resume_in_the_middle_of_an_epoch_reads_the_images_of_its_step_alone(tmp_path: Path) -> None:
    root = write_shards(tmp_path / "shards")
    with served(root) as (uri, answers):
        config = replace(config_of(root), root=uri)
        whole = batches(build(config, global_batch_size=4), 5)
        resumed = build(config, global_batch_size=4)
        answers.clear()
        (batch,) = batches(resumed, 1, start=4)
        assert all(torch.equal(a, b) for a, b in zip(batch.views, whole[4].views, strict=True))
        sizes = [len(jpeg(int(index))) for index in batch.indices]
        assert sorted(size for _, size in answers) == sorted(sizes)


def test_shards_are_read_through_once_and_again_where_they_have_changed(tmp_path: Path) -> None:
    root = write_shards(tmp_path / "shards")
    with served(root) as (uri, answers):
        config = replace(config_of(root), root=uri)
        before = opened(config).fingerprint()
        assert len({name for name, _ in answers}) == 3
        answers.clear()
        assert opened(config).fingerprint() == before
        assert answers == []
        changed = write_tar(root / "photos-train-0001.tar", samples(first=50, num=9))
        os.utime(changed, (0, 0))  # stores count seconds
        assert opened(config).fingerprint() != before
        assert {name for name, _ in answers} == {"photos-train-0001.tar"}
    for file in (tmp_path / "cache" / "shards").iterdir():
        file.write_bytes(file.read_bytes()[:100])  # by a machine that went down
    assert len(opened(config_of(root))) == 25


@pytest.mark.parametrize("kind", ["webdataset", "parquet"])
def test_a_cache_that_cannot_be_written_is_one_sentence(
    pristine: dict[str, DataConfig], tmp_path: Path, kind: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file/.*, which cannot be written \(.*\): set cache_folder"):
        opened(replace(pristine[kind], cache_folder=str(tmp_path / "file")))


def test_the_fingerprint_knows_the_images_and_not_their_place(tmp_path: Path) -> None:
    few, many = write_shards(tmp_path / "a"), write_shards(tmp_path / "b", num_shards=2)
    assert opened(config_of(few)).fingerprint() == opened(config_of(many)).fingerprint()
    (few / "photos-train-0000.tar").unlink()
    assert opened(config_of(few)).fingerprint() != opened(config_of(many)).fingerprint()


@pytest.mark.parametrize("damage", ["cut", "cut between files", "overwritten", "compressed", "empty"])
def test_a_damaged_shard_is_named_before_anything_is_trained(tmp_path: Path, damage: str) -> None:
    root = write_shards(tmp_path / "shards")
    shard = root / "photos-train-0001.tar"
    content = shard.read_bytes()
    first = 512 + -(-len(jpeg(5)) // 512) * 512
    damaged = {
        "cut": content[: len(content) // 2],
        "cut between files": content[:first],
        "overwritten": content[:first] + b"?" * 512 + content[first + 512 :],
        "compressed": b"\x1f\x8b" + content[2:],
        "empty": b"",
    }[damage]
    shard.write_bytes(damaged)
    with pytest.raises(ConfigError, match=r"must be a whole tar file, not compressed; photos-train-0001.tar is not \("):
        build(config_of(root))


def test_an_unreadable_image_of_a_shard_is_named_or_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    content = samples()
    content["00007"]["jpg"] = b"no image at all"
    root = write_tar(tmp_path / "shards" / "all.tar", content).parent
    with pytest.raises(ImageReadError, match=r"readable, 00007.jpg in all.tar is not \(no image in a format"):
        batches(build(config_of(root)), 3)
    data = build(config_of(root, on_error="skip"))
    with caplog.at_level(logging.WARNING, logger="sts_methods"):
        made = batches(data, 3)
    assert list(data.skipped) == [7]
    assert all(7 not in batch.indices for batch in made)


def test_a_shard_that_shrinks_during_a_run_is_an_unreadable_image(tmp_path: Path) -> None:
    root = write_tar(tmp_path / "shards" / "all.tar", samples()).parent
    data = build(config_of(root))
    (root / "all.tar").write_bytes((root / "all.tar").read_bytes()[:700])
    with pytest.raises(ImageReadError, match=r"bytes from byte \d+ on were to be read, there are"):
        batches(data, 3)


def test_an_object_store_without_pyarrow_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.fs", None)
    with pytest.raises(ConfigError, match=r"read with pyarrow, which is missing: pip install 'sts-methods\[arrow\]'"):
        opened(DataConfig(dataset="webdataset", root="s3://bucket/elsewhere"))


def test_nothing_of_a_shard_is_unpacked_wherever_its_paths_lead(tmp_path: Path) -> None:
    names = ("../../outside", "/absolute", "a/../b")
    root = write_tar(
        tmp_path / "deep" / "shards" / "all.tar", dict(zip(names, samples().values(), strict=False))
    ).parent
    before = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    source = opened(config_of(root, cache_folder=str(tmp_path / "cache")))
    assert np.array_equal(read_image(source, 0), decode(jpeg(0)))
    assert len(source) == 3
    after = {path for path in tmp_path.rglob("*") if path.is_file() and path.parent.parent != tmp_path / "cache"}
    assert after == set(before)
    assert not Path("/absolute.jpg").exists()


def test_what_a_sample_holds_can_be_said_and_must_be_where_it_is_not_clear(tmp_path: Path) -> None:
    content = {key: {**sample, "seg.png": b"mask", "species.txt": b"owl"} for key, sample in samples(num=4).items()}
    root = write_tar(tmp_path / "shards" / "all.tar", content).parent
    with pytest.raises(ConfigError, match=r"has jpg, seg\.png: set image_column to one"):
        opened(config_of(root))
    assert opened(config_of(root, image_column="jpg")).classes == ("0", "1", "2")
    named = opened(config_of(root, image_column="jpg", label_column="species.txt"))
    assert named.classes == ("owl",)
    with pytest.raises(ConfigError, match=r"00000.jpg in all\.tar has none: add it, or set label_column"):
        opened(config_of(root, image_column="jpg", label_column="kind"))
    with pytest.raises(ConfigError, match="image_column is for tables and shards, digits needs none, got 'jpg'"):
        DataConfig(dataset="digits", image_column="jpg")


def test_shards_without_classes_train_and_cannot_be_evaluated(tmp_path: Path) -> None:
    content = {key: {"jpg": sample["jpg"]} for key, sample in samples().items()}
    config = config_of(write_tar(tmp_path / "shards" / "all.tar", content).parent)
    assert opened(config).labels is None
    assert len(batches(build(config), 1)[0].views[0]) == 8
    with pytest.raises(ConfigError, match="evaluation needs labelled images"):
        evaluation_data(config)


def test_splits_and_their_classes_must_be_there(tmp_path: Path) -> None:
    root = tmp_path / "shards"
    with pytest.raises(ConfigError, match="needs tar shards, got none in"):
        opened(config_of(root))
    write_tar(root / "train" / "0.tar", samples())
    with pytest.raises(
        ConfigError, match="names 'validation' or 'val' or 'valid' or 'test': rename them, or set test_split"
    ):
        opened(config_of(root), "test")
    write_tar(root / "odd-0.tar", {"a": {"jpg": jpeg(0), "cls": b"7"}})
    with pytest.raises(ConfigError, match="must be those of the training set, which has no '7'"):
        opened(config_of(root, test_split="odd"), "test")
