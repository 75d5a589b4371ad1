"""Corruption benchmarks made from clean images, with a cache that is never half-written."""

import hashlib
import io
import json
import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from sts_core import ConfigError, StateError
from sts_core.files import write_atomically
from sts_eval.corruptions.benchmark import ALL_CORRUPTIONS, SEVERITIES, check_corruptions, check_severities
from sts_eval.corruptions.folders import (
    ArrayCell,
    CellImages,
    ImageArray,
    class_folders,
    count_classes,
    digest_of,
    image_names,
    image_tree,
)
from sts_eval.corruptions.functions import GENERATOR, SMALLEST_SIDE, corrupt_image, corruption_key
from sts_eval.corruptions.pixels.strengths import table_for
from sts_eval.errors import DataError
from sts_eval.features.images import centre_crop, read_image

RELEASED_QUALITY = 85  # make_imagenet_c.py saves its results as JPEG of quality 85
RESIZE_RATIO = 256 / 224  # make_imagenet_c.py: Resize(256), CenterCrop(224), then the corruption


class CleanFolder:
    """Clean images as root/class/image, resized and cropped as ImageNet-C's were before they were corrupted.

    With `skip_unreadable` all are decoded once, and those that cannot be are left out, each with a warning.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        image_size: int = 224,
        classes: Sequence[str] | None = None,
        skip_unreadable: bool = False,
    ) -> None:
        self.root, self.image_size = Path(root), image_size
        _check_side(image_size)
        self.classes = class_folders(self.root, classes)
        listed = image_tree(self.root, self.classes)
        self.samples = [sample for sample in listed if self._is_readable(sample[0])] if skip_unreadable else listed
        if not self.samples:
            raise DataError(f"some image must be readable, none of the {len(listed)} under {root} is: repair them")
        self.num_skipped = len(listed) - len(self.samples)
        self.names = image_names(self.samples, self.root)
        self.labels = np.array([label for _, label in self.samples], dtype=np.int64)
        self.num_classes = len(self.classes)

    def _is_readable(self, file: str) -> bool:
        try:
            read_image(self.root / file)
        except DataError as error:
            warnings.warn(f"left out an image: {error}", UserWarning, stacklevel=3)
            return False
        return True

    @cached_property
    def pixels(self) -> str:
        """A hash of all files: read once, where each is corrupted many times over."""
        digest = hashlib.sha256()
        for file, _ in self.samples:
            digest.update(hashlib.sha256((self.root / file).read_bytes()).digest())
        return digest.hexdigest()[:16]

    def image(self, index: int) -> ImageArray:
        path = self.root / self.samples[index][0]
        resize = round(self.image_size * RESIZE_RATIO)
        return np.asarray(centre_crop(read_image(path), self.image_size, resize=resize))


class CleanArrays:
    """Clean images as one uint8 array [N, H, W, 3], e.g. the test set of CIFAR-10; used at the size they have."""

    def __init__(self, images: ImageArray, labels: npt.ArrayLike, *, num_classes: int | None = None) -> None:
        self.images, self.labels = images, np.asarray(labels, dtype=np.int64)
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3 or self.labels.shape != (len(images),):
            raise ConfigError(
                f"clean images must be uint8 [N, height, width, 3] with N labels, got {images.dtype} {images.shape} "
                f"and labels {self.labels.shape}: convert them"
            )
        self.image_size = min(images.shape[1:3])
        _check_side(self.image_size)
        self.names = tuple(str(index) for index in range(len(images)))
        self.pixels = hashlib.sha256(np.ascontiguousarray(images).data).hexdigest()[:16]
        self.num_classes = count_classes(self.labels, num_classes, where="clean")

    def image(self, index: int) -> ImageArray:
        return np.asarray(self.images[index])


def _check_side(side: int) -> None:
    if side < SMALLEST_SIDE:
        raise ConfigError(f"corruptions need images of at least {SMALLEST_SIDE} px, got {side}: raise image_size")


def _read_card(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except (ValueError, TypeError):
        raise StateError(
            f"a cache must say in {path.name} what it holds, {path} is damaged: delete {path.parent}"
        ) from None


def _holds(path: Path, shape: tuple[int, ...]) -> bool:
    """Whether a file is a whole array of uint8 of this shape."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return False
    return bool(array.shape == shape and array.dtype == np.uint8)


class GeneratedCell:
    """One cell, corrupted image by image when asked; with a folder, each result is kept and read the next time."""

    def __init__(
        self, clean: CleanFolder | CleanArrays, corruption: str, severity: int, *, seed: int, folder: Path | None
    ) -> None:
        self.clean, self.corruption, self.severity = clean, corruption, severity
        self.seed, self.folder = seed, folder
        self.digest = digest_of(clean.names, clean.labels.tolist())

    def __len__(self) -> int:
        return len(self.clean.names)

    def __getitem__(self, index: int) -> tuple[ImageArray, int]:
        label = int(self.clean.labels[index])
        if isinstance(self.clean, CleanArrays):
            return self.corrupted(index), label
        path = None if self.folder is None else self.folder / f"{self.clean.names[index]}.JPEG"
        if path is not None and path.is_file():
            with suppress(DataError):  # damaged, e.g. by a crash of the machine: made again
                return np.asarray(read_image(path)), label
        content = io.BytesIO()
        Image.fromarray(self.corrupted(index)).save(content, "JPEG", quality=RELEASED_QUALITY)
        if path is not None:
            write_atomically(path, content.getvalue(), durable=False)  # up to 75 x 50,000 of them
        return np.asarray(Image.open(content)), label

    def corrupted(self, index: int) -> ImageArray:
        """The corrupted image before it is stored."""
        key = corruption_key(self.seed, self.clean.names[index], self.corruption, self.severity)
        return corrupt_image(self.clean.image(index), self.corruption, self.severity, key=key)


class GeneratedCorruptions:
    """A corruption benchmark computed from clean images: a pure function of them and of `seed`.

    The released images are to be preferred where they exist: other draws and textures of frost give other numbers.
    Folders of images go through JPEG of quality 85 as the released ones did; arrays do not.
    With `cache`, results are kept in the layout of ImageNet-C (folders) or as one array per cell (arrays), for these
    clean pixels only; a damaged file is made again.
    """

    generator = GENERATOR
    """What made the pixels: part of the key of every result."""

    def __init__(
        self,
        clean: CleanFolder | CleanArrays,
        *,
        corruptions: Sequence[str] = ALL_CORRUPTIONS,
        severities: Sequence[int] = SEVERITIES,
        seed: int = 0,
        cache: str | Path | None = None,
    ) -> None:
        self.clean, self.seed = clean, seed
        self.corruptions = check_corruptions(corruptions)
        self.severities = check_severities(severities)
        self.num_classes = clean.num_classes
        self.cache = None if cache is None else Path(cache)
        if self.cache is not None:
            self._claim(self.cache)

    def describe(self) -> dict[str, Any]:
        clean = self.clean
        skipped = {"skipped": clean.num_skipped} if isinstance(clean, CleanFolder) and clean.num_skipped else {}
        return {
            "source": "generated",
            "seed": self.seed,
            "image_size": clean.image_size,
            "images": digest_of(clean.names, clean.labels.tolist()),
            "pixels": clean.pixels,
            "jpeg_quality": RELEASED_QUALITY if isinstance(clean, CleanFolder) else None,
            "generator": self.generator,
            "parameters": table_for(clean.image_size),
            **skipped,
        }

    def _claim(self, cache: Path) -> None:
        """Mark the cache as ours, or refuse one that holds other images."""
        card, ours = cache / "corruptions.json", self.describe()
        if not card.is_file():
            # Another rank may be writing the same card, under a temporary name.
            if cache.is_dir() and any(not file.name.startswith(f".{card.name}.") for file in cache.iterdir()):
                raise StateError(f"a cache must be empty or one of ours, {cache} is neither: choose another folder")
            write_atomically(card, json.dumps(ours, indent=2))
        theirs = _read_card(card)
        if different := [key for key in ours if theirs.get(key) != ours[key]]:
            key = different[0]
            raise StateError(
                f"a cache belongs to one set of images, {cache} was made with {key} {theirs.get(key)!r} and not "
                f"{ours[key]!r}: choose another folder or delete this one"
            )

    def cell(self, corruption: str, severity: int) -> CellImages:
        folder = None if self.cache is None else self.cache / corruption / str(severity)
        cell = GeneratedCell(self.clean, corruption, severity, seed=self.seed, folder=folder)
        if folder is None or isinstance(self.clean, CleanFolder):
            return cell
        path = folder.with_suffix(".npy")
        if not _holds(path, self.clean.images.shape):
            content = io.BytesIO()
            np.save(content, np.stack([cell.corrupted(index) for index in range(len(cell))]))
            write_atomically(path, content.getvalue())
        return ArrayCell(path, self.clean.labels, 0)
