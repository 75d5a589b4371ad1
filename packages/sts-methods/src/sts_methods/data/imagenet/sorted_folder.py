"""ImageNet in a folder: whether it is sorted into its classes, and complete."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sts_core import ConfigError
from sts_methods.data.sources import Split

MANIFEST = "imagenet.json"
WNID = re.compile(r"n\d{8}")
VALIDATION_IMAGE = re.compile(r"ILSVRC2012_val_(\d{8})\.JPEG")
ENOUGH_CLASSES = 0.9  # of all: a folder with fewer is a subset that somebody has chosen
THREADS = 8
REMEDY = "sts prepare imagenet ARCHIVES FOLDER"

Counts = Mapping[str, Mapping[str, int]]
"""Images of each class of each split."""


@dataclass(frozen=True, kw_only=True)
class ImageNetSize:
    """How many classes and images there are: of ILSVRC 2012, if nothing else is said."""

    classes: int = 1_000
    train: int = 1_281_167
    val: int = 50_000


ILSVRC_2012 = ImageNetSize()


def check_imagenet(
    root: str | Path, splits: Sequence[Split] = ("train", "test"), *, expected: ImageNetSize = ILSVRC_2012
) -> None:
    """Raise where a folder that claims to be ImageNet is unsorted or incomplete.

    It claims so with the manifest of a preparation, nearly all of the classes, or the archives' names.
    """
    root = Path(root).expanduser()
    test = "val" if (root / "val").is_dir() else "test"
    folders = ["train" if split == "train" else test for split in splits]
    manifest, found = read_manifest(root), {name: classes_in(root / name) for name in folders}
    for name in folders:
        _check_sorted(root / name, found[name], expected)
    if manifest is None and max(map(len, found.values())) <= ENOUGH_CLASSES * expected.classes:
        return
    if manifest is not None and "train" not in manifest:
        raise ConfigError(f"the preparation of ImageNet in {root} was interrupted: let {REMEDY} finish it")
    check_counts(root, {name: counted(root / name) for name in folders}, expected, manifest or {})


def check_counts(root: Path, counts: Counts, expected: ImageNetSize, per_class: Mapping[str, Any]) -> None:
    """Raise where classes or images are missing, or there are too many: by class, where it is known how many."""
    for split, found in counts.items():
        if len(found) != expected.classes:
            known = set().union(*counts.values(), *(per_class.get(other, {}) for other in counts))
            missing = sorted(known - set(found))
            which = f", without {', '.join(missing[:3])}" if missing else ""
            raise ConfigError(
                f"ImageNet has {expected.classes:,} classes, {root / split} has {len(found):,}{which}: let {REMEDY} "
                f"add them"
            )
        wanted = per_class.get(split, {})
        if differing := sorted(wnid for wnid, num in found.items() if num != wanted.get(wnid, num)):
            wnid = differing[0]
            raise ConfigError(
                f"{len(differing):,} of the classes in {root / split} are incomplete, {wnid} has {found[wnid]:,} "
                f"images and not {wanted[wnid]:,}: remove their folders, and let {REMEDY} make them anew"
            )
        right = expected.train if split == "train" else expected.val
        if (num := sum(found.values())) != right:
            raise ConfigError(
                f"ImageNet has {right:,} images in {split}, {root / split} has {num:,}: let "
                f"{REMEDY} make it anew in an empty folder"
            )


def _check_sorted(folder: Path, classes: Sequence[str], expected: ImageNetSize) -> None:
    """Raise where archives or the validation images lie as they came, and their classes are missing."""
    if len(classes) >= expected.classes or not folder.is_dir():
        return
    names = [entry.name for entry in os.scandir(folder)]
    loose = sum(VALIDATION_IMAGE.fullmatch(name) is not None for name in names)
    archives = len({name[:-4] for name in names if re.fullmatch(rf"{WNID.pattern}\.tar", name)} - set(classes))
    if loose or archives:
        what = (
            f"{loose:,} images of ImageNet in no class's folder"
            if loose
            else f"{archives:,} archives of classes that have no folder"
        )
        raise ConfigError(f"{folder} has {what}, where training needs a folder per class: sort it by {REMEDY}")


def classes_in(folder: Path) -> list[str]:
    """The folders that are called as ImageNet calls its classes."""
    if not folder.is_dir():
        return []
    return sorted(entry.name for entry in os.scandir(folder) if WNID.fullmatch(entry.name) and entry.is_dir())


def counted(folder: Path) -> dict[str, int]:
    """The number of images of each class."""
    wnids = classes_in(folder)
    with ThreadPoolExecutor(THREADS) as pool:  # a listing waits for the disk, or for the network
        return dict(zip(wnids, pool.map(lambda wnid: _num_images(folder / wnid), wnids), strict=True))


def _num_images(folder: Path) -> int:
    return sum(entry.name.endswith(".JPEG") for entry in os.scandir(folder))


def read_manifest(root: Path) -> dict[str, Any] | None:
    """What a preparation has written down; None without one."""
    try:
        read = json.loads((root / MANIFEST).read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{root / MANIFEST} cannot be read ({error}): remove it") from error
    return read if isinstance(read, dict) else None
