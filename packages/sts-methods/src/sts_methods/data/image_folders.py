"""Image files found below a folder, with a folder for each class or without labels."""

import os
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

import numpy as np

from sts_core import ConfigError
from sts_methods.data.sources import ImageFiles, Paths, Split

IMAGE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".jp2", ".png", ".bmp", ".gif", ".webp", ".avif", ".tif", ".tiff"}
    | {".ppm", ".pgm"}
)


def image_folder(root: Path, split: Split) -> ImageFiles:
    """One folder per class under root/train and root/val (or root/test); the classes are those of root/train."""
    train = root / "train"
    base = train if split == "train" else next((f for f in (root / "val", root / "test") if f.is_dir()), root / "val")
    if not base.is_dir():
        raise ConfigError(f"dataset 'imagefolder' needs the folder {base}, which does not exist: check root")
    classes = _class_folders(train if train.is_dir() else base)
    images = [_images_below(base / name) for name in classes]
    if not any(images):
        raise ConfigError(f"dataset 'imagefolder' needs one folder of images per class, got none in {base}: check root")
    _check_classes(base, dict(zip(classes, images, strict=True)), complete=base == train)
    labels = np.repeat(np.arange(len(classes), dtype=np.int64), [len(paths) for paths in images])
    return ImageFiles(Paths(chain.from_iterable(images), folder=base), labels, classes)


def _class_folders(base: Path) -> tuple[str, ...]:
    """Hidden folders, such as .ipynb_checkpoints, are no classes."""
    return tuple(sorted(f.name for f in base.iterdir() if f.is_dir() and not f.name.startswith(".")))


def _check_classes(base: Path, images: Mapping[str, list[str]], *, complete: bool) -> None:
    """Raise if a folder of `base` is not among the classes or, for a training set, a class has no images."""
    unknown = [name for name in _class_folders(base) if name not in images]
    if unknown:
        raise ConfigError(
            f"the classes of {base} must be those of the training set, which has no {', '.join(map(repr, unknown))}: "
            f"remove or rename the folder{'s' if len(unknown) > 1 else ''}"
        )
    empty = [name for name, paths in images.items() if not paths]
    if complete and empty:
        raise ConfigError(
            f"every folder in {base} is a class and needs images, {', '.join(map(repr, empty))} has none: add its "
            f"images, or remove the folder"
        )


def unlabelled_images(root: Path, split: Split) -> ImageFiles:
    """All images below a folder, at any depth, without labels."""
    if split != "train":
        raise ConfigError(
            "dataset 'images' has no labels to evaluate on: use imagefolder, or evaluate on another dataset"
        )
    paths = _images_below(root)
    if not paths:
        raise ConfigError(f"dataset 'images' needs a folder with images, got none below {root}: check root")
    return ImageFiles(Paths(paths, folder=root), None, None)


def _images_below(folder: Path) -> list[str]:
    found = (os.path.join(base, name) for base, _, names in os.walk(folder, followlinks=True) for name in names)
    return sorted(path for path in found if os.path.splitext(path)[1].lower() in IMAGE_SUFFIXES)
