"""Reader of ImageNet-C as released: folders of images by corruption, severity and class.

A source offers cells, one per (corruption, severity); a cell is a map-style dataset of (uint8 image [H, W, 3], label).
Sources hold names and labels only, so they travel to other processes; each is checked as a whole before the first
image is read.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from sts_eval.corruptions.benchmark import (
    ALL_CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    GROUPS,
    SEVERITIES,
    check_corruptions,
    check_severities,
)
from sts_eval.errors import DataError
from sts_eval.features.images import centre_box, folders_in, is_image, read_image
from sts_eval.features.samples import check_labels

ImageArray = npt.NDArray[np.uint8]
ARCHIVES = {name: group for group, names in (*GROUPS.items(), ("extra", EXTRA_CORRUPTIONS)) for name in names}


class CellImages(Protocol):
    """The images of one (corruption, severity), in the same order in every cell of a source."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[ImageArray, int]: ...

    @property
    def digest(self) -> str:
        """A hash of the images' names and labels; cells with the same digest can be compared image by image."""
        ...


class CorruptionSource(Protocol):
    """Where corrupted images come from: released folders, released arrays, or clean images and a generator."""

    @property
    def corruptions(self) -> tuple[str, ...]: ...

    @property
    def severities(self) -> tuple[int, ...]: ...

    @property
    def num_classes(self) -> int: ...

    def cell(self, corruption: str, severity: int) -> CellImages: ...

    def describe(self) -> dict[str, Any]:
        """Where the images come from, for the results file."""
        ...


def digest_of(names: Sequence[str], labels: Sequence[int]) -> str:
    """A short hash of which images a cell holds, in which order and with which labels."""
    lines = "\n".join(f"{name}\t{label}" for name, label in zip(names, labels, strict=True))
    return hashlib.sha256(lines.encode()).hexdigest()[:16]


def center_crop(image: Image.Image, side: int, path: Path) -> ImageArray:
    """The central side x side pixels; ImageNet-C is stored at 224 px, so nothing is resized (release, test.py)."""
    if min(image.size) < side:
        size = f"{image.width}x{image.height}"
        raise DataError(
            f"images must be at least {side}x{side} pixels, {path} is {size}: pass the image_size of this dataset"
        )
    return np.asarray(image.crop(centre_box(image.size, side)))


def count_classes(labels: npt.NDArray[np.int64], num_classes: int | None, *, where: str) -> int:
    """`num_classes`, which all labels must fit, or one more than the highest label."""
    count = int(labels.max(initial=0)) + 1 if num_classes is None else num_classes
    check_labels(torch.tensor(labels), count, split=where, allow_missing=True)
    return count


def image_tree(root: Path, classes: Sequence[str]) -> list[tuple[str, int]]:
    """All (class/file, label) below root, at any depth, sorted, labels in the order of `classes`."""
    samples = []
    for label, name in enumerate(classes):
        walked = ((base, file) for base, _, files in os.walk(root / name, followlinks=True) for file in files)
        found = sorted(os.path.relpath(os.path.join(base, file), root) for base, file in walked if is_image(file))
        if not found:
            raise DataError(f"every class needs an image, {root / name} has none: unpack or copy it again")
        samples += [(file, label) for file in found]
    return samples


def image_names(samples: Sequence[tuple[str, int]], root: Path) -> tuple[str, ...]:
    """class/file without the ending, which is how an image is known in PNG and in JPEG; each must occur once."""
    files: dict[str, str] = {}
    for file, _ in samples:
        name = os.path.splitext(file)[0]
        if name in files:
            raise DataError(
                f"images of a class must differ in more than their ending, {files[name]} and {file} in {root} do not: "
                "rename one"
            )
        files[name] = file
    return tuple(files)


def class_folders(root: Path, expected: Sequence[str] | None = None) -> tuple[str, ...]:
    """The names of root's sub-folders, sorted; they must be the `expected` ones if these are given."""
    if not root.is_dir():
        raise DataError(f"images must be in a folder, {root} is none: correct the path")
    found = tuple(folders_in(root))
    if not found:
        raise DataError(f"{root} must hold one folder per class, it holds none: point to such a folder")
    if expected is not None and found != tuple(expected):
        wrong = sorted(set(expected).symmetric_difference(found))
        which = f"{', '.join(wrong[:3])}{' and more' if len(wrong) > 3 else ''}"
        raise DataError(
            f"classes must be the same in every cell and in the model, {root} differs in {which}: complete the folder"
        )
    return found


class FolderCell:
    """The images (class/file, label) below one folder."""

    def __init__(self, root: Path, samples: Sequence[tuple[str, int]], *, digest: str, image_size: int) -> None:
        self.root, self.samples, self.digest, self.image_size = root, samples, digest, image_size

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[ImageArray, int]:
        file, label = self.samples[index]
        path = self.root / file
        return center_crop(read_image(path), self.image_size, path), label


class FolderCorruptions:
    """ImageNet-C as released: root/[archive/]corruption/severity/class/image, archive = noise, blur, weather, ...

    `corruptions=None` takes those that are there and asks for the five severities of each. All cells must hold files of
    the same names; they are listed here once, and a missing one is named before hours of evaluation.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        corruptions: Sequence[str] | None = None,
        severities: Sequence[int] = SEVERITIES,
        classes: Sequence[str] | None = None,
        image_size: int = 224,
    ) -> None:
        self.root = Path(root)
        self.severities = check_severities(severities)
        self.image_size = image_size
        self.folders = self._find(corruptions)
        self.corruptions = tuple(self.folders)
        self._check_severities()
        self.classes = class_folders(next(self._cells()), classes)
        self.samples = self._list()
        self._digest = digest_of(image_names(self.samples, self.root), [label for _, label in self.samples])

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    def _find(self, wanted: Sequence[str] | None) -> dict[str, Path]:
        names = ALL_CORRUPTIONS if wanted is None else check_corruptions(wanted)
        places = {name: [self.root / name, self.root / ARCHIVES[name] / name] for name in names}
        folders = {name: place for name in names for place in reversed(places[name]) if place.is_dir()}
        if wanted is not None and (missing := [name for name in names if name not in folders]):
            archive = f"{ARCHIVES[missing[0]]}.tar"
            raise DataError(f"{self.root} must hold {missing[0]}, it does not: unpack {archive} there")
        if not folders:
            raise DataError(
                f"{self.root} must hold folders such as gaussian_noise/1/class/image.JPEG, it has no corruption: "
                "point to the folder into which ImageNet-C was unpacked"
            )
        return folders

    def _cells(self) -> Iterator[Path]:
        return (folder / str(severity) for folder in self.folders.values() for severity in self.severities)

    def _check_severities(self) -> None:
        for cell in self._cells():
            if not cell.is_dir():
                name = cell.parent.name
                raise DataError(
                    f"every corruption needs severities {', '.join(map(str, self.severities))}, {name} has no folder "
                    f"{cell.name} in {cell.parent}: unpack {ARCHIVES[name]}.tar again or leave {name} out"
                )

    def _list(self) -> list[tuple[str, int]]:
        """The images of the first cell, which every other must hold too."""
        first, *others = self._cells()
        samples = image_tree(first, self.classes)
        for cell in others:
            class_folders(cell, self.classes)
            if (found := image_tree(cell, self.classes)) != samples:
                file, _ = min(set(samples).symmetric_difference(found))
                there, lacking = (first, cell) if (first / file).is_file() else (cell, first)
                raise DataError(
                    f"all cells must hold the same images, {file} is in {there} but not in {lacking}: "
                    f"unpack {ARCHIVES[cell.parent.name]}.tar again"
                )
        return samples

    def cell(self, corruption: str, severity: int) -> FolderCell:
        root = self.folders[corruption] / str(severity)
        return FolderCell(root, self.samples, digest=self._digest, image_size=self.image_size)

    def describe(self) -> dict[str, Any]:
        return {"source": "released folders", "root": str(self.root), "image_size": self.image_size}


class ArrayCell:
    """Consecutive images of an array [N, H, W, 3], memory-mapped when a worker first needs it."""

    def __init__(self, path: Path, labels: npt.NDArray[np.int64], start: int) -> None:
        self.path, self.labels, self.start = path, labels, start
        self.digest = digest_of([str(i) for i in range(len(labels))], labels.tolist())
        self._images: ImageArray | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_images": None}  # a memory map would be pickled as a copy of the whole array

    def __getitem__(self, index: int) -> tuple[ImageArray, int]:
        if self._images is None:
            self._images = np.load(self.path, mmap_mode="r")
        return np.array(self._images[self.start + index]), int(self.labels[index])
