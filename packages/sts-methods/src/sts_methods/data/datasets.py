"""Datasets by name: digits, CIFAR, npz files and folders of images."""

import zipfile
import zlib
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from sts_core.errors import ConfigError
from sts_core.files import locked
from sts_methods.data.image_folders import (
    image_folder,
    unlabelled_images,
)
from sts_methods.data.sources import ImageArrays, Source, Split, Statistics
from sts_methods.draws import TEST_SPLIT_STREAM, IntArray, permutation

DatasetName = Literal["digits", "cifar10", "cifar100", "imagefolder", "images", "arrays"]


IMAGENET_STATISTICS: Statistics = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # MoCo v2, main_moco.py


STATISTICS: dict[str, Statistics] = {
    "digits": ((0.3053,) * 3, (0.3761,) * 3),  # measured on the training split at 8x8
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)),  # kekmodel, dataset/cifar.py
    "cifar100": ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),  # kekmodel, dataset/cifar.py
}


def statistics_of(dataset: DatasetName) -> Statistics:
    """Mean and standard deviation that images of `dataset` are normalised with; ImageNet's unless we know better."""
    return STATISTICS.get(dataset, IMAGENET_STATISTICS)


def open_source(dataset: DatasetName, root: str | None, split: Split, *, image_size: int) -> Source:
    """The images of one split of a dataset."""
    if dataset == "digits":
        return digits(split).resized(image_size)
    if dataset not in get_args(DatasetName):
        raise ConfigError(
            f"dataset must be one of {', '.join(get_args(DatasetName))}, got {dataset!r}: choose one of these"
        )
    if root is None:
        raise ConfigError(f"dataset {dataset!r} needs to know where its files are, got root=None: set root")
    if dataset in ("cifar10", "cifar100"):
        return cifar(dataset, root, split)
    if dataset == "arrays":
        return arrays(Path(root), split)
    if dataset == "imagefolder":
        return image_folder(Path(root), split)
    return unlabelled_images(Path(root), split)


def digits(split: Split) -> ImageArrays:
    """scikit-learn's 1,797 handwritten digits of 8x8 pixels as RGB; a fixed fifth is the test set."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = permutation(len(bunch.target), seed=0, stream=TEST_SPLIT_STREAM)
    num_test = len(order) // 5
    chosen = np.sort(order[:num_test] if split == "test" else order[num_test:])
    gray = np.rint(bunch.images[chosen] * (255 / 16)).astype(np.uint8)
    images = torch.from_numpy(gray)[:, None].repeat(1, 3, 1, 1)
    return ImageArrays(images, bunch.target[chosen].astype(np.int64), tuple(str(name) for name in bunch.target_names))


def cifar(dataset: DatasetName, root: str, split: Split) -> ImageArrays:
    """CIFAR-10 or CIFAR-100 as torchvision reads them, downloaded on first use."""
    from torchvision.datasets import CIFAR10, CIFAR100

    reader = CIFAR10 if dataset == "cifar10" else CIFAR100
    folder = Path(root) / reader.base_folder
    try:
        if not folder.exists():
            with locked(Path(root) / ".lock"):  # of several workers on a machine, one downloads
                reader(root, download=True)
        try:
            data = reader(root, train=split == "train")
        except RuntimeError:  # not intact: perhaps another worker is still unpacking
            with locked(Path(root) / ".lock"):
                data = reader(root, train=split == "train")
    except (OSError, RuntimeError) as error:
        raise ConfigError(
            f"{dataset} needs {reader.url} unpacked in {folder}, which failed ({error}): do so"
        ) from error
    images = torch.from_numpy(np.ascontiguousarray(data.data.transpose(0, 3, 1, 2)))
    return ImageArrays(images, np.asarray(data.targets, dtype=np.int64), tuple(data.classes))


def arrays(path: Path, split: Split) -> ImageArrays:
    """An npz file with x_train, y_train, x_test, y_test; images are uint8 [N, H, W], [N, H, W, 1] or [N, H, W, 3]."""
    if not zipfile.is_zipfile(path):
        raise ConfigError(
            f"dataset 'arrays' reads one whole npz file, got root={str(path)!r}, which is none: check the path, or "
            f"write the file anew with numpy.savez"
        )
    with np.load(path, allow_pickle=False) as file:
        if f"x_{split}" not in file:
            raise ConfigError(f"{path} must hold the array x_{split}, it holds {', '.join(file.files)}: add the array")
        images = _as_rgb(_array(file, f"x_{split}", path), path)
        labels = _as_labels(_array(file, f"y_{split}", path), len(images), path) if f"y_{split}" in file else None
        names = tuple(str(n) for n in _array(file, "classes", path)) if "classes" in file else None
    if names is None and labels is not None:
        names = tuple(str(k) for k in range(int(labels.max()) + 1))
    return ImageArrays(images, labels, names)


def _array(file: Any, name: str, path: Path) -> np.ndarray[Any, Any]:
    """One array of an open npz file."""
    try:
        return np.asarray(file[name])
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise ConfigError(
            f"{path} must hold intact arrays of plain numbers, {name} is none ({error}): write the file anew"
        ) from error


def _as_labels(labels: np.ndarray[Any, Any], num_images: int, path: Path) -> IntArray:
    if labels.size != num_images:
        raise ConfigError(f"{path} must have one label per image, got {labels.size} for {num_images}: fix the labels")
    if labels.dtype.kind not in "iu" or labels.min() < 0:
        found = labels.dtype if labels.dtype.kind not in "iu" else labels.min()
        raise ConfigError(f"{path} must number the classes 0, 1, 2, ..., got {found} among its labels: convert them")
    return labels.astype(np.int64).reshape(-1)


def _as_rgb(images: np.ndarray[Any, Any], path: Path) -> Tensor:
    if images.ndim == 3:
        images = images[..., None]
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] not in (1, 3):
        raise ConfigError(
            f"{path} must hold uint8 images [N, H, W, 3], got {images.dtype} {list(images.shape)}: convert them"
        )
    if not images.size:
        raise ConfigError(f"{path} must hold at least one image, got an array {list(images.shape)}: add images")
    return torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))).expand(-1, 3, -1, -1).contiguous()
