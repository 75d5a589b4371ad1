"""From ImageNet's archives to folders of classes: sorted, smaller if that is wanted, and counted."""

import io
import json
import os
import re
import shutil
import tarfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from PIL import Image

from sts_core import ConfigError
from sts_core.files import locked, write_atomically
from sts_methods.data.image_files import ImageReadError, decode
from sts_methods.data.imagenet.sorted_folder import (
    ILSVRC_2012,
    MANIFEST,
    VALIDATION_IMAGE,
    WNID,
    Counts,
    ImageNetSize,
    check_counts,
    classes_in,
    counted,
    read_manifest,
)
from sts_methods.data.stored.tar_index import regular_files

FOLDERS = ("", "ILSVRC/Data/CLS-LOC")  # in which train/ and val/ may lie; the latter: Kaggle
LABELS = (
    "ILSVRC2012_devkit_t12.tar.gz",
    "ILSVRC2012_devkit_t12/data",
    "LOC_val_solution.csv",  # Kaggle
    "imagenet_2012_validation_synset_labels.txt",  # TensorFlow
)
SECONDS_BETWEEN_REPORTS = 5.0


@dataclass(frozen=True)
class _Picture:
    """An image file, or the part of an archive that holds one."""

    name: str
    path: Path
    place: tuple[int, int] | None = None
    """Offset and size."""

    def encoded(self) -> bytes:
        if self.place is None:
            return self.path.read_bytes()
        with self.path.open("rb") as file:
            file.seek(self.place[0])
            return file.read(self.place[1])


@dataclass(frozen=True)
class _Class:
    split: str
    wnid: str
    pictures: Callable[[], list[_Picture]]


Labels = Mapping[int, str]
"""The class of each validation image, by its number."""


def prepare_imagenet(
    source: str | Path, folder: str | Path, *, labels: str | Path | None = None, shorter_side: int | None = None,
    quality: int = 95, num_threads: int = 1, expected: ImageNetSize = ILSVRC_2012,
    report: Callable[[str], object] = print,
) -> None:  # fmt: skip
    """Make train/CLASS/ and val/CLASS/ in `folder` of the archives, or of unsorted folders, in `source`.

    `labels` says the class of each validation image: the development kit, or a file with the class of an image in each
    line; None looks for either in `source`. With `shorter_side` larger images are made smaller, as JPEG of `quality`;
    all others are copied to the bit, or linked where they are files. A class is there whole or not at all, and the
    same call resumes a preparation that was interrupted.
    """
    source, folder = Path(source).expanduser(), Path(folder).expanduser()
    if (shorter_side is not None and shorter_side < 1) or not 1 <= quality <= 100:
        raise ConfigError(f"shorter_side must be positive and quality in 1 to 100, got {shorter_side} and {quality}")
    settings = {"shorter_side": shorter_side, "quality": None if shorter_side is None else quality}
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with locked(folder / ".imagenet.lock", patience_seconds=0.0):
            known = _known(source, labels)
            classes = [*_training(source), *_validation(source, known)]
            _begin(folder, settings)
            _write_all(classes, folder, shorter_side, quality, num_threads, report)
            counts = {split: counted(folder / split) for split in ("train", "val")}
            _check(folder, counts, expected, classes)
            write_atomically(folder / MANIFEST, json.dumps(settings | counts, indent=1) + "\n")
    except TimeoutError as error:
        raise ConfigError(f"another process prepares {folder}: wait for it") from error
    report(f"{folder} is complete: {expected.classes:,} classes, {expected.train:,} + {expected.val:,} images")


def _check(folder: Path, counts: Counts, expected: ImageNetSize, classes: list[_Class]) -> None:
    """Compare the numbers of images with ImageNet's and, where they differ, each class with its source."""
    try:
        check_counts(folder, counts, expected, {})
    except ConfigError:
        there = {split: {one.wnid: len(one.pictures()) for one in classes if one.split == split} for split in counts}
        check_counts(folder, counts, expected, there)  # which names the class
        raise


def _begin(folder: Path, settings: dict[str, Any]) -> None:
    """Write down how images are prepared, or raise where those that are there were prepared otherwise."""
    before = read_manifest(folder)
    if before is not None and {name: before.get(name) for name in settings} != settings:
        raise ConfigError(
            f"{folder} was begun with shorter_side={before.get('shorter_side')} and quality={before.get('quality')}, "
            f"got {settings['shorter_side']} and {settings['quality']}: keep them, or choose another folder"
        )
    if (
        before is None
        and settings["shorter_side"] is not None
        and any(classes_in(folder / s) for s in ("train", "val"))
    ):
        raise ConfigError(f"{folder} has classes already, whose images may have another size: choose an empty folder")
    write_atomically(folder / MANIFEST, json.dumps(settings) + "\n")


def _write_all(
    classes: list[_Class], folder: Path, shorter_side: int | None, quality: int, num_threads: int,
    report: Callable[[str], object],
) -> None:  # fmt: skip
    """Threads do for this: Pillow works outside Python's lock."""
    pool, told = ThreadPoolExecutor(num_threads), time.monotonic()
    try:
        made = [pool.submit(_write, one, folder / one.split / one.wnid, shorter_side, quality) for one in classes]
        for number, one in enumerate(as_completed(made), start=1):
            one.result()
            if time.monotonic() - told > SECONDS_BETWEEN_REPORTS:
                told = time.monotonic()
                report(f"{number:,} of {len(classes):,} folders of classes")
    finally:
        pool.shutdown(cancel_futures=True)


def _write(one: _Class, target: Path, shorter_side: int | None, quality: int) -> None:
    """One class, which gets its name when all of its images are there."""
    if target.is_dir():
        return
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for picture in one.pictures():
        if shorter_side is not None:
            (partial / picture.name).write_bytes(_smaller(picture, shorter_side, quality))
        elif picture.place is not None:
            (partial / picture.name).write_bytes(picture.encoded())
        else:
            try:
                os.link(picture.path, partial / picture.name)
            except OSError:  # on another disk, or on one without links
                shutil.copyfile(picture.path, partial / picture.name)
    partial.rename(target)


def _smaller(picture: _Picture, shorter_side: int, quality: int) -> bytes:
    data = picture.encoded()
    try:
        pixels = decode(data)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ImageReadError(
            f"every image must be readable, {picture.name} of {picture.path} is not ({error})"
        ) from error
    height, width = pixels.shape[:2]
    if (least := min(height, width)) <= shorter_side:
        return data
    size = (round(width * shorter_side / least), round(height * shorter_side / least))
    buffer = io.BytesIO()
    Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def _training(source: Path) -> list[_Class]:
    archive = source / "ILSVRC2012_img_train.tar"
    if archive.is_file():
        inner = [picture for picture in _pictures(archive) if re.fullmatch(rf"{WNID.pattern}\.tar", picture.name)]
        return [_Class("train", one.name[:-4], partial(_pictures, one.path, one.place)) for one in inner]
    for folder in (source / above / "train" for above in FOLDERS):
        archives = sorted(folder.glob("n*.tar")) if folder.is_dir() else []
        if archives:
            return [_Class("train", one.stem, partial(_pictures, one)) for one in archives]
        if wnids := classes_in(folder):
            return [_Class("train", wnid, partial(_files, folder / wnid)) for wnid in wnids]
    raise ConfigError(
        f"training images come from ILSVRC2012_img_train.tar, or from train/ with its folders or archives of classes, "
        f"{source} has neither: put them there"
    )


def _validation(source: Path, known: Labels) -> list[_Class]:
    archive = source / "ILSVRC2012_img_val.tar"
    if archive.is_file():
        return _sorted(_pictures(archive), known, source)
    for folder in (source / above / "val" for above in FOLDERS):
        if wnids := classes_in(folder):
            return [_Class("val", wnid, partial(_files, folder / wnid)) for wnid in wnids]
        if folder.is_dir() and (pictures := _files(folder)):
            return _sorted(pictures, known, source)
    raise ConfigError(
        f"validation images come from ILSVRC2012_img_val.tar, or from val/ with its images or folders of classes, "
        f"{source} has neither: put them there"
    )


def _sorted(pictures: Iterable[_Picture], known: Labels, source: Path) -> list[_Class]:
    """Validation images by their classes."""
    found = defaultdict[str, list[_Picture]](list)
    for picture in pictures:
        number = VALIDATION_IMAGE.fullmatch(picture.name)
        if number is None or int(number[1]) not in known:
            raise ConfigError(
                f"the class of each validation image must be known, that of {picture.name} is not: put the development "
                f"kit ({LABELS[0]}) into {source}, or name a file with --labels"
            )
        found[known[int(number[1])]].append(picture)
    return [_Class("val", wnid, partial(list, own)) for wnid, own in sorted(found.items())]


def _files(folder: Path) -> list[_Picture]:
    return [_Picture(name, folder / name) for name in sorted(os.listdir(folder)) if name.endswith(".JPEG")]


def _pictures(archive: Path, place: tuple[int, int] | None = None) -> list[_Picture]:
    """The files in an archive, or in the archive within it at `place`; a path that leads out of it is refused."""
    start, size = place or (0, archive.stat().st_size)
    found = []
    try:
        with archive.open("rb") as content:
            content.seek(start)
            for info in regular_files(content, start + size):
                path = PurePosixPath(info.name)
                if path.is_absolute() or ".." in path.parts:
                    raise ConfigError(
                        f"{archive} holds the path {info.name}, which leads out of it: get the official one"
                    )
                found.append(_Picture(path.name, archive, (info.offset_data, info.size)))
    except tarfile.TarError as error:
        raise ConfigError(f"{archive} is damaged or not complete ({error}): download it again") from error
    return found


def _known(source: Path, labels: str | Path | None) -> Labels:
    """The classes of validation images: from where they are said to be, or from the first place there is."""
    places = [Path(labels).expanduser()] if labels is not None else [source / name for name in LABELS]
    place = next((one for one in places if one.exists()), None)
    if place is None:
        if labels is not None:
            raise ConfigError(f"labels must be the development kit or a file with classes, {labels} does not exist")
        return {}
    if place.is_dir() or place.name.endswith(".tar.gz"):
        try:
            return _from_kit(place)
        except ConfigError:
            raise
        except Exception as error:  # there are many ways to be damaged for a .tar.gz and the .mat in it
            raise ConfigError(f"the development kit {place} cannot be read ({error}): download it again") from error
    return _from_lines(place)


def _from_kit(kit: Path) -> Labels:
    from scipy.io import loadmat  # which scikit-learn depends on

    names = ("ILSVRC2012_validation_ground_truth.txt", "meta.mat")
    if kit.is_dir():
        content = {path.name: path.read_bytes() for path in kit.rglob("*") if path.name in names}
    else:
        with tarfile.open(kit, "r:gz") as tar:  # two of its files are read, and none is unpacked
            members = {PurePosixPath(info.name).name: info for info in tar if info.isreg()}
            read = {name: tar.extractfile(members[name]) for name in names if name in members}
            content = {name: file.read() for name, file in read.items() if file is not None}
    if missing := sorted(set(names) - set(content)):
        raise ConfigError(f"the development kit {kit} lacks {' and '.join(missing)}: download it again")
    synsets = np.atleast_1d(loadmat(io.BytesIO(content["meta.mat"]), squeeze_me=True)["synsets"])
    wnids = {int(one["ILSVRC2012_ID"]): str(one["WNID"]) for one in synsets}
    truth = [int(line) for line in content[names[0]].split()]
    return {position: wnids[number] for position, number in enumerate(truth, start=1)}


def _from_lines(file: Path) -> dict[int, str]:
    """From lines with a class each: of the image that is named in it, or else of the image with the line's number."""
    found: dict[int, str] = {}
    lines = file.read_text(errors="replace").splitlines()
    for position, line in enumerate(lines, start=1):
        wnid, number = WNID.search(line), re.search(r"ILSVRC2012_val_(\d{8})", line)
        if wnid is not None:
            found[int(number[1]) if number else position] = wnid[0]
        elif line.strip() and position > 1:  # the first may be a header
            raise ConfigError(
                f"every line of {file} names a class such as n01440764, line {position} does not: {line!r}"
            )
    return found
