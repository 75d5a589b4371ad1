"""Folders of images: read by any number of processes to the same batch; unreadable files are named or skipped."""

import logging
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from sts_core.errors import ConfigError, StsError
from sts_methods import Batch, DataConfig, ImageReadError, TrainingData, build_training_data, evaluation_data
from sts_methods.data.datasets import open_source
from sts_methods.data.file_loaders import FileViews
from sts_methods.data.image_files import read_image
from sts_methods.data.image_folders import IMAGE_SUFFIXES
from sts_methods.data.loaders import Request
from sts_methods.data.sources import ImageArrays, ImageFiles, Paths
from sts_methods.draws import Keys
from sts_methods.training.run import Run
from sts_methods.views.specs import weak_and_strong
from tests.methods.training import tiny_training as tiny
from tests.methods.views import pillow_reference as reference

NUM_IMAGES = 24

pytestmark = [
    # On a machine with one core two loader processes are one too many, which does not matter here.
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    # Python from 3.12 on distrusts torch's way of starting them.
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of eight images each, mostly JPEG, of different sizes, in train/ and val/."""
    root = tmp_path_factory.mktemp("folder")
    for split in ("train", "val"):
        for number in range(NUM_IMAGES):
            folder = root / split / f"class{number % 3}"
            folder.mkdir(parents=True, exist_ok=True)
            picture = reference.pillow(reference.photograph(number, height=60 + number, width=90 - number))
            suffix = "png" if number % 5 == 0 else "jpg"
            picture.save(folder / f"{number:02d}.{suffix}")
    return root


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(pristine, tmp_path / "images"))


def config_of(root: Path, **changes: object) -> DataConfig:
    settings = {"dataset": "imagefolder", "root": str(root), "image_size": 32, "views": "moco", "unlabelled_ratio": 2}
    return DataConfig(**(settings | changes))  # type: ignore[arg-type]


def build(config: DataConfig, **places: int) -> TrainingData:
    return build_training_data(config, seed=3, **({"global_batch_size": 8} | places))  # type: ignore[arg-type]


def pixels_of(path: Path) -> np.ndarray:
    return read_image(ImageFiles(Paths([str(path)]), None, None), 0)


def batches(data: TrainingData, num: int, start: int = 0) -> list[Batch]:
    steps = data.steps(start)
    return [next(steps)[0] for _ in range(num)]


def test_loader_processes_give_the_same_batches_as_none(pristine: Path) -> None:
    config = config_of(pristine)
    alone = batches(build(config), 4)
    with_two = batches(build(replace(config, num_workers=2)), 4)
    for one, two in zip(alone, with_two, strict=True):
        assert torch.equal(one.indices, two.indices)
        assert all(torch.equal(a, b) for a, b in zip(one.views, two.views, strict=True))


@pytest.mark.timeout(60)
def test_loader_processes_work_after_this_one_has_used_opencv_with_threads(pristine: Path) -> None:
    before = cv2.getNumThreads()
    cv2.setNumThreads(2)
    try:
        cv2.GaussianBlur(np.zeros((2000, 2000, 3), np.uint8), (31, 31), 5)  # large enough for the pool to start
        (batch,) = batches(build(config_of(pristine, num_workers=1)), 1)
    finally:
        cv2.setNumThreads(before)
    assert len(batch.views[0]) == 8


def test_ranks_tile_the_global_batch_and_a_resume_continues(pristine: Path) -> None:
    config = config_of(pristine, views="byol")
    whole = batches(build(config), 5)
    ranks = [batches(build(config, rank=r, world_size=2), 1, start=4)[0] for r in range(2)]
    assert torch.equal(torch.cat([r.views[1] for r in ranks]), whole[4].views[1])


def test_augmenting_on_the_device_gives_the_same_views_up_to_rounding(pristine: Path) -> None:
    for recipe in ("moco", "byol"):
        config = config_of(pristine, views=recipe)
        (worker,) = batches(build(replace(config, device_augmentation=False)), 1)
        (device,) = batches(build(replace(config, device_augmentation=True)), 1)
        for a, b in zip(worker.views, device.views, strict=True):
            assert (a - b).abs().mean() * 0.225 * 255 < 0.6


def test_fixmatch_reads_labelled_images_of_the_split(pristine: Path) -> None:
    data = build(config_of(pristine, views="fixmatch", num_labels=6))
    (batch,) = batches(data, 1)
    assert data.label_split is not None
    assert batch.labels is not None
    assert batch.labelled is not None
    assert batch.views[0].shape == (16, 3, 32, 32)
    assert batch.labelled.shape == (8, 3, 32, 32)
    assert sorted(set(batch.labels.tolist())) == [0, 1, 2]


def test_a_folder_of_unlabelled_images_trains_but_cannot_be_evaluated(pristine: Path) -> None:
    config = config_of(pristine / "train", dataset="images")
    data = build(config)
    assert data.num_samples == NUM_IMAGES
    assert data.num_classes is None
    assert len(batches(data, 1)[0].views[0]) == 8
    with pytest.raises(ConfigError, match="labels"):
        evaluation_data(config)
    with pytest.raises(ConfigError, match="learns from labels"):
        build(replace(config, views="fixmatch"))


def test_jpegs_decode_to_pillows_pixels(pristine: Path) -> None:
    path = next((pristine / "train").rglob("*.jpg"))
    assert np.array_equal(pixels_of(path), np.asarray(Image.open(path).convert("RGB")))


def test_gray_and_cmyk_and_transparent_images_are_read_as_rgb(tmp_path: Path) -> None:
    for mode, suffix in (("L", "jpg"), ("CMYK", "jpg"), ("RGBA", "png"), ("P", "png")):
        path = tmp_path / f"{mode}.{suffix}"
        Image.new(mode, (20, 10), 77).save(path)
        assert pixels_of(path).shape == (10, 20, 3)


def test_evaluation_data_reads_both_splits(pristine: Path) -> None:
    train, test = evaluation_data(config_of(pristine))
    assert len(train) == len(test) == NUM_IMAGES
    image, label = test[23]
    assert image.shape == (3, 32, 32)
    assert test.classes[label] == "class2"


def damage(folder: Path) -> list[str]:
    """Make three training images unreadable in three ways; returns their paths."""
    paths = sorted((folder / "train").rglob("*.jpg"))[:3]
    paths[0].write_bytes(b"not an image")
    paths[1].write_bytes(paths[1].read_bytes()[:400])
    paths[2].write_bytes(b"")
    return [str(path) for path in paths]


def test_an_image_of_16_bits_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "deep.png"
    Image.fromarray(np.full((8, 8), 40_000, dtype=np.uint16)).save(path)
    with pytest.raises(ImageReadError, match=r"deep.png is not \(images have 8 bits per channel, its mode is I;16\)"):
        pixels_of(path)


def test_evaluation_skips_unreadable_images_as_training_does(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    damaged = damage(folder)
    train, _ = evaluation_data(config_of(folder))
    with pytest.raises(ImageReadError, match="every image must be readable"):
        [train[index] for index in range(len(train))]
    train, _ = evaluation_data(config_of(folder, on_error="skip"))
    items = [train[index] for index in range(len(train))] + [train[0]]
    assert len(items) == NUM_IMAGES + 1
    assert len(caplog.records) == 3  # each is told once
    first = train.paths.index(damaged[0])
    after = next(index for index in range(first, NUM_IMAGES) if train.paths[index] not in damaged)
    assert torch.equal(items[first][0], items[after][0])
    assert items[first][1] == items[after][1]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_unreadable_image_stops_with_an_error_that_names_it(folder: Path, num_workers: int) -> None:
    damaged = damage(folder)
    with pytest.raises(ImageReadError) as caught:
        batches(build(config_of(folder, num_workers=num_workers)), 3)
    assert any(path in str(caught.value) for path in damaged)
    assert "set on_error to skip" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, StsError | OSError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301


def test_a_file_that_vanished_after_listing_is_named(folder: Path) -> None:
    data = build(config_of(folder))
    gone = sorted((folder / "train").rglob("*.jpg"))
    for path in gone:
        path.unlink()
    with pytest.raises(ImageReadError, match=r"\.jpg is not"):
        batches(data, 3)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_skipping_keeps_the_batch_size_and_counts_and_reports(
    folder: Path, num_workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    damaged = damage(folder)
    data = build(config_of(folder, on_error="skip", num_workers=num_workers))
    with caplog.at_level(logging.WARNING, logger="sts_methods"):
        made = batches(data, 6)
    assert all(len(batch.indices) == len(batch.views[0]) == 8 for batch in made)
    assert len(data.skipped) == 3
    assert all(any(path in message for message in data.skipped.values()) for path in damaged)
    assert len(caplog.records) == 3, "each file is reported once"
    assert not set(data.skipped) & {int(i) for batch in made for i in batch.indices}


def test_a_run_that_skips_images_logs_their_number(folder: Path, tmp_path: Path) -> None:
    damage(folder)
    config = tiny.tiny_config(data=config_of(folder, views="byol", on_error="skip"), global_batch_size=24, steps=1)
    assert tiny.tiny_fit(config, tiny.runtime(tmp_path / "run")).metrics["skipped_images"] == 3
    assert tiny.logged(tmp_path / "run")[0]["skipped_images"] == 3
    plain = tiny.tiny_fit(tiny.tiny_config(steps=1), tiny.runtime(tmp_path / "plain"))
    assert "skipped_images" not in plain.metrics


def test_the_batch_that_measures_drift_skips_nothing_of_the_run(tmp_path: Path) -> None:
    tiny.write_photos(tmp_path / "photos")
    config = replace(tiny.photos_config(tmp_path / "photos"), global_batch_size=8)  # the first batch has all images
    run = Run(config, tiny.runtime(tmp_path / "run"), method=tiny.TinyMethod(config.method, seed=0))
    assert run.drift is not None
    assert run.data.skipped == {}
    next(run.batches)
    assert len(run.data.skipped) == 1


def test_a_skipped_labelled_image_is_replaced_within_the_labelled_set(folder: Path) -> None:
    source = open_source("imagefolder", str(folder), "train", image_size=32)
    assert isinstance(source, ImageFiles)
    Path(source.paths[5]).write_bytes(b"broken")
    labelled_set = np.array([2, 5, 11])
    reader = FileViews(source, weak_and_strong(), seed=0, skip=True, finish=True, labelled_set=labelled_set)
    drawn = Keys(np.array([5, 2, 5, 11]), np.zeros(4, dtype=np.int64))
    _, made = reader[Request(0, drawn, drawn)]
    assert made.parcel is not None
    todo = made.parcel.opened(torch.device("cpu"))
    assert todo.indices.tolist() == [6, 2, 6, 11]
    assert todo.labelled_indices is not None
    assert todo.labelled_indices.tolist() == [11, 2, 11, 11]
    assert list(made.failures) == [5]


def test_a_folder_without_a_single_readable_image_is_an_error(folder: Path) -> None:
    for path in (folder / "train").rglob("*.*"):
        path.write_bytes(b"broken")
    with pytest.raises(ImageReadError, match="no image"):
        batches(build(config_of(folder, on_error="skip")), 1)


def test_missing_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="check root"):
        build(config_of(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="check root"):
        build(config_of(tmp_path, dataset="images"))


def test_the_classes_of_a_validation_set_are_those_of_the_training_set(folder: Path) -> None:
    shutil.rmtree(folder / "val" / "class0")
    (folder / "val" / ".ipynb_checkpoints").mkdir()
    _, test = evaluation_data(config_of(folder))
    assert test.classes == ("class0", "class1", "class2")
    assert sorted(set(test.targets.tolist())) == [1, 2]
    (folder / "val" / "class1").rename(folder / "val" / "elk")
    with pytest.raises(ConfigError, match=r"must be those of the training set, which has no 'elk'"):
        evaluation_data(config_of(folder))


def test_hidden_folders_are_no_classes_and_empty_ones_are_refused(folder: Path) -> None:
    (folder / "train" / ".ipynb_checkpoints").mkdir()
    assert build(config_of(folder)).num_classes == 3
    (folder / "train" / "class9").mkdir()
    with pytest.raises(ConfigError, match=r"is a class and needs images, 'class9' has none"):
        build(config_of(folder))


def test_a_validation_set_without_a_training_set_has_classes_of_its_own(folder: Path) -> None:
    shutil.rmtree(folder / "train")
    assert open_source("imagefolder", str(folder), "test", image_size=32).classes == ("class0", "class1", "class2")


@pytest.mark.parametrize("folder_name", ["", "b", "b/"])
def test_paths_keep_their_order_and_any_name(folder_name: str) -> None:
    names = ["b/ä.jpg", "a.png", "", "c/\udcff.jpg"]
    if folder_name:
        names = [f"b/{name}" for name in names]
    paths = Paths(names, folder=folder_name)
    assert list(paths) == names
    assert paths[1:3] == names[1:3]
    assert len(paths) == 4
    with pytest.raises(IndexError):
        paths[4]


def write_cifar(root: Path, *, coarse: bool) -> np.ndarray:
    """Files of CIFAR's layout with four images each; returns those of the training set, [N, 32, 32, 3]."""
    rng = np.random.default_rng(0)
    folder = root / ("cifar-100-python" if coarse else "cifar-10-batches-py")
    folder.mkdir(parents=True)
    names = ["train", "test"] if coarse else [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]
    rows = {name: rng.integers(0, 256, (4, 3072), dtype=np.uint8) for name in names}
    for name, data in rows.items():
        (folder / name).write_bytes(pickle.dumps({"data": data, "labels": [0, 1, 2, 3], "fine_labels": [0, 1, 2, 3]}))
    meta = {"label_names": list("abcd"), "fine_label_names": list("abcd")}
    (folder / ("meta" if coarse else "batches.meta")).write_bytes(pickle.dumps(meta))
    return np.concatenate([rows[name] for name in names[:-1]]).reshape(-1, 3, 32, 32)


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100"])
def test_cifar_is_read_as_torchvision_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dataset: str) -> None:
    from torchvision.datasets import cifar

    images = write_cifar(tmp_path, coarse=dataset == "cifar100")
    monkeypatch.setattr(cifar, "check_integrity", lambda path, md5=None: Path(path).exists())
    source = open_source(dataset, str(tmp_path), "train", image_size=32)  # type: ignore[arg-type]
    assert isinstance(source, ImageArrays)
    assert np.array_equal(source.images.numpy(), images)
    assert source.labels is not None
    assert source.labels[:4].tolist() == [0, 1, 2, 3]
    assert source.classes == tuple("abcd")


def test_damaged_cifar_files_are_an_error_that_says_where_they_belong(tmp_path: Path) -> None:
    write_cifar(tmp_path, coarse=False)
    with pytest.raises(ConfigError, match="cifar-10-batches-py"):
        open_source("cifar10", str(tmp_path), "train", image_size=32)


def test_every_kind_of_file_that_counts_as_an_image_can_be_read(tmp_path: Path) -> None:
    picture = Image.fromarray(np.full((8, 8, 3), 90, dtype=np.uint8))
    for suffix in IMAGE_SUFFIXES:
        picture.convert("L" if suffix == ".pgm" else "RGB").save(tmp_path / f"a{suffix}")
    source = open_source("images", str(tmp_path), "train", image_size=8)
    assert isinstance(source, ImageFiles)
    assert len(source) == len(IMAGE_SUFFIXES)
    assert all(read_image(source, index).shape == (8, 8, 3) for index in range(len(source)))
