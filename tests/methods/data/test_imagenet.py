"""ImageNet's archives become folders of classes, whole or not at all; what is unsorted or incomplete is told."""

import io
import json
import shutil
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from sts_core import ConfigError
from sts_core.files import locked
from sts_methods import DataConfig, ImageReadError, prepare_imagenet
from sts_methods.data.imagenet import archives as preparation
from sts_methods.data.imagenet.sorted_folder import ImageNetSize, check_imagenet
from tests.methods.data.stored_images import jpeg

CLASSES = ("n01440764", "n02084071", "n03000684")
IDS = (2, 3, 1)  # of the development kit, which counts otherwise than the alphabet
NUM_TRAIN = (3, 2, 4)
TRUTH = (3, 1, 2, 2, 3, 1)  # of validation images 1, 2, ...
SIZE = ImageNetSize(classes=3, train=9, val=6)


def tar_of(content: Mapping[str, bytes], mode: str = "w") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:  # type: ignore[call-overload]
        for name, data in content.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def train_images(wnid: str) -> dict[str, bytes]:
    first = 10 * CLASSES.index(wnid)
    return {f"{wnid}_{n}.JPEG": jpeg(first + n) for n in range(NUM_TRAIN[CLASSES.index(wnid)])}


def val_images() -> dict[str, bytes]:
    return {f"ILSVRC2012_val_{n:08d}.JPEG": jpeg(40 + n) for n in range(1, 7)}


def kit() -> bytes:
    fields = [("ILSVRC2012_ID", object), ("WNID", object), ("num_children", object), ("num_train_images", object)]
    rows = [(number, wnid, 0, num) for number, wnid, num in zip(IDS, CLASSES, NUM_TRAIN, strict=True)]
    meta = io.BytesIO()
    savemat(meta, {"synsets": np.array([*rows, (4, "n00001740", 2, 0)], dtype=fields)[:, None]})
    truth = "".join(f"{number}\n" for number in TRUTH).encode()
    base = "ILSVRC2012_devkit_t12/data"
    return tar_of(
        {f"{base}/ILSVRC2012_validation_ground_truth.txt": truth, f"{base}/meta.mat": meta.getvalue()}, "w:gz"
    )


@pytest.fixture
def archives(tmp_path: Path) -> Path:
    """As they are downloaded."""
    folder = tmp_path / "downloads"
    folder.mkdir()
    inner = {f"{wnid}.tar": tar_of(train_images(wnid)) for wnid in CLASSES}
    (folder / "ILSVRC2012_img_train.tar").write_bytes(tar_of(inner))
    (folder / "ILSVRC2012_img_val.tar").write_bytes(tar_of(val_images()))
    (folder / "ILSVRC2012_devkit_t12.tar.gz").write_bytes(kit())
    return folder


def prepare(source: Path, folder: Path, **options: Any) -> None:
    prepare_imagenet(source, folder, **({"expected": SIZE, "num_threads": 2} | options))


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.JPEG"))}


def sorted_images() -> dict[str, bytes]:
    train = {f"train/{wnid}/{name}": data for wnid in CLASSES for name, data in train_images(wnid).items()}
    of_id = dict(zip(IDS, CLASSES, strict=True))
    val = {
        f"val/{of_id[number]}/{name}": data for number, (name, data) in zip(TRUTH, val_images().items(), strict=True)
    }
    return train | val


def unpacked(folder: Path, *, kaggle: bool = False) -> Path:
    """Train in folders of classes, and validation images as they come."""
    base = folder / "ILSVRC/Data/CLS-LOC" if kaggle else folder
    for name, data in sorted_images().items():
        path = base / ("val/" + Path(name).name if name.startswith("val") else name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def label_lines() -> list[str]:
    return [dict(zip(IDS, CLASSES, strict=True))[number] for number in TRUTH]


def test_archives_become_folders_of_classes_with_the_same_bytes(archives: Path, tmp_path: Path) -> None:
    told: list[str] = []
    prepare(archives, tmp_path / "imagenet", report=told.append)
    assert content_of(tmp_path / "imagenet") == sorted_images()
    assert told[-1].endswith("is complete: 3 classes, 9 + 6 images")
    check_imagenet(tmp_path / "imagenet", expected=SIZE)
    train = DataConfig(dataset="imagefolder", root=str(tmp_path / "imagenet"), views="moco").open("train")
    assert (len(train), train.classes) == (9, CLASSES)


@pytest.mark.parametrize("labels", ["kaggle", "tensorflow", "named"])
def test_folders_and_files_of_classes_do_as_well(tmp_path: Path, labels: str) -> None:
    source, options = unpacked(tmp_path / "source", kaggle=labels == "kaggle"), {}
    if labels == "kaggle":
        rows = [f"ILSVRC2012_val_{n:08d},{wnid} 1 2 3 4" for n, wnid in enumerate(label_lines(), start=1)]
        (source / "LOC_val_solution.csv").write_text("\n".join(["ImageId,PredictionString", *reversed(rows)]))
    elif labels == "tensorflow":
        (source / "imagenet_2012_validation_synset_labels.txt").write_text("\n".join(label_lines()))
    else:
        (tmp_path / "mine.txt").write_text("\n".join(label_lines()))
        options["labels"] = tmp_path / "mine.txt"
    prepare(source, tmp_path / "imagenet", **options)
    assert content_of(tmp_path / "imagenet") == sorted_images()


def test_images_are_made_smaller_and_small_ones_left_alone(archives: Path, tmp_path: Path) -> None:
    prepare(archives, tmp_path / "small", shorter_side=45, quality=90)
    before, smaller, left = sorted_images(), 0, 0
    for name, data in content_of(tmp_path / "small").items():
        was, now = (Image.open(io.BytesIO(x)).size for x in (before[name], data))
        if min(was) <= 45:
            assert data == before[name]
            left += 1
        else:
            assert min(now) == 45
            assert abs(now[0] / now[1] - was[0] / was[1]) < 0.03
            smaller += 1
    assert smaller
    assert left
    with pytest.raises(ConfigError, match="was begun with shorter_side=45 and quality=90, got 45 and 95: keep them"):
        prepare(archives, tmp_path / "small", shorter_side=45)


def test_a_preparation_that_was_interrupted_goes_on(
    archives: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, written = tmp_path / "imagenet", []
    real = preparation._write

    def killed(one: Any, target: Path, *settings: Any) -> None:
        if one.split == "val":
            real(replace(one, pictures=lambda: one.pictures()[:1]), target.with_name("unnamed"), *settings)
            (target.parent / "unnamed").rename(target.with_name(f".{target.name}.partial"))
            raise KeyboardInterrupt
        written.append(target.name)
        real(one, target, *settings)

    monkeypatch.setattr(preparation, "_write", killed)
    with pytest.raises(KeyboardInterrupt):
        prepare(archives, folder, num_threads=1)
    monkeypatch.undo()
    assert written == list(CLASSES)
    with pytest.raises(ConfigError, match="was interrupted: let sts prepare imagenet ARCHIVES FOLDER finish it"):
        check_imagenet(folder, expected=SIZE)
    times = {path: path.stat().st_mtime_ns for path in (folder / "train").rglob("*.JPEG")}
    prepare(archives, folder)
    assert content_of(folder) == sorted_images()
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert not list(folder.rglob("*.partial"))


@pytest.mark.parametrize("name", ["ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"])
def test_an_archive_that_is_cut_short_is_named(archives: Path, tmp_path: Path, name: str) -> None:
    content = (archives / name).read_bytes()
    (archives / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(ConfigError, match=rf"{name} is damaged or not complete \(.*\): download it again"):
        prepare(archives, tmp_path / "imagenet")
    assert not (tmp_path / "imagenet" / "val").exists()


@pytest.mark.parametrize("path", ["../outside.JPEG", "/tmp/outside.JPEG", "a/../../outside.JPEG"])
def test_a_path_that_leads_out_of_its_archive_is_refused(archives: Path, tmp_path: Path, path: str) -> None:
    inner = {f"{wnid}.tar": tar_of(train_images(wnid)) for wnid in CLASSES}
    inner[f"{CLASSES[1]}.tar"] = tar_of({path: jpeg(0)})
    (archives / "ILSVRC2012_img_train.tar").write_bytes(tar_of(inner))
    with pytest.raises(ConfigError, match=r"which leads out of it: get the official one"):
        prepare(archives, tmp_path / "imagenet")
    assert not list(tmp_path.rglob("outside*"))
    assert not (tmp_path / "imagenet" / "train" / CLASSES[1]).exists()


def test_what_is_missing_is_said(archives: Path, tmp_path: Path) -> None:
    folder = tmp_path / "imagenet"
    with locked(folder / ".imagenet.lock"), pytest.raises(ConfigError, match="another process prepares"):
        prepare(archives, folder)
    fewer = {f"{wnid}.tar": tar_of(train_images(wnid)) for wnid in CLASSES[:2]}
    (archives / "ILSVRC2012_img_train.tar").write_bytes(tar_of(fewer))
    with pytest.raises(ConfigError, match=r"ImageNet has 3 classes, .*train has 2, without n03000684: let sts prepare"):
        prepare(archives, folder)
    (archives / "ILSVRC2012_devkit_t12.tar.gz").write_bytes(kit()[:200])
    with pytest.raises(ConfigError, match=r"devkit_t12.tar.gz cannot be read \(.*\): download it again"):
        prepare(archives, folder)
    (archives / "ILSVRC2012_devkit_t12.tar.gz").unlink()
    with pytest.raises(ConfigError, match=r"that of ILSVRC2012_val_00000001.JPEG is not: put the development kit"):
        prepare(archives, folder)
    (archives / "ILSVRC2012_img_train.tar").unlink()
    with pytest.raises(ConfigError, match=r"training images come from ILSVRC2012_img_train.tar, or from train/ with"):
        prepare(archives, folder)


def test_an_image_that_cannot_be_made_smaller_is_named(archives: Path, tmp_path: Path) -> None:
    images = dict.fromkeys(train_images(CLASSES[0]), b"broken")
    inner = {f"{wnid}.tar": tar_of(images if wnid == CLASSES[0] else train_images(wnid)) for wnid in CLASSES}
    (archives / "ILSVRC2012_img_train.tar").write_bytes(tar_of(inner))
    with pytest.raises(ImageReadError, match=r"every image must be readable, n01440764_0.JPEG of"):
        prepare(archives, tmp_path / "imagenet", shorter_side=45)


def test_images_that_vanish_later_are_counted_by_class(archives: Path, tmp_path: Path) -> None:
    folder = tmp_path / "imagenet"
    prepare(archives, folder)
    (folder / "train" / CLASSES[0] / f"{CLASSES[0]}_1.JPEG").unlink()
    message = r"1 of the classes in .*train are incomplete, n01440764 has 2 images and not 3: remove their folders"
    with pytest.raises(ConfigError, match=message):
        check_imagenet(folder, expected=SIZE)
    with pytest.raises(ConfigError, match=message):
        prepare(archives, folder)
    shutil.rmtree(folder / "train" / CLASSES[0])
    prepare(archives, folder)
    (folder / "imagenet.json").unlink()  # as of a folder that somebody else has sorted
    check_imagenet(folder, expected=SIZE)
    (folder / "val" / CLASSES[0] / "ILSVRC2012_val_00000003.JPEG").unlink()
    with pytest.raises(ConfigError, match=r"ImageNet has 6 images in val, .*val has 5: let sts prepare"):
        check_imagenet(folder, expected=SIZE)
    check_imagenet(folder, ("train",), expected=SIZE)


def test_a_folder_that_is_not_sorted_is_told_and_a_subset_is_not(archives: Path, tmp_path: Path) -> None:
    source = unpacked(tmp_path / "source")
    with pytest.raises(ConfigError, match=r"val has 6 images of ImageNet in no class's folder, .* sort it by sts"):
        check_imagenet(source)
    check_imagenet(source, ("train",))
    (source / "train" / f"{CLASSES[0]}.tar").touch()  # left beside its folder
    check_imagenet(source, ("train",))
    (source / "train" / "n04000000.tar").touch()
    with pytest.raises(ConfigError, match=r"train has 1 archives of classes that have no folder, where training needs"):
        check_imagenet(source, ("train",))
    for archive in source.glob("train/*.tar"):
        archive.unlink()
    shutil.copy(archives / "ILSVRC2012_devkit_t12.tar.gz", source)
    prepare(source, source)  # in place: the files are linked
    check_imagenet(source, expected=SIZE)
    assert json.loads((source / "imagenet.json").read_text())["val"] == dict.fromkeys(CLASSES, 2)
    for name, data in sorted_images().items():
        (tmp_path / "subset" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "subset" / name).write_bytes(data)
    check_imagenet(tmp_path / "subset")  # three classes of a thousand are somebody's choice
