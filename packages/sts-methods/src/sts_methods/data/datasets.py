"""Datasets by name, each a record, and how those in memory are read: digits, CIFAR and npz files."""

import importlib.util
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sts_core import ConfigError
from sts_core.files import is_uri, locked
from sts_methods.data.image_folders import image_folder, unlabelled_images
from sts_methods.data.imagenet.sorted_folder import check_imagenet
from sts_methods.data.sources import ImageArrays, Layout, Source, Split, Statistics
from sts_methods.data.stored.shards import shard_images
from sts_methods.data.stored.tables import table_images
from sts_methods.draws import TEST_SPLIT_STREAM, IntArray, permutation
from sts_methods.views.specs import Subject

IMAGENET_STATISTICS: Statistics = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # MoCo v2, main_moco.py


@dataclass(frozen=True, kw_only=True)
class DatasetRecord:
    """All that the rest of the project knows of a dataset."""

    name: str
    """What users call it."""
    about: str = ""
    """What it is or how its files lie, in a few words for the help."""
    open: Callable[..., Source]
    """The images of one split: called with `root` and the split and, with `takes_layout`, a Layout."""
    takes_layout: bool = False
    """Whether its files hold more than images, so that users may have to say what stands where."""
    statistics: Statistics = IMAGENET_STATISTICS
    """Mean and standard deviation that its images are normalised with."""
    subject: Subject = "photographs"
    """What its images show: digits are augmented differently."""
    in_files: bool = False
    """Whether its images stay in files, and are not held in memory."""
    held_at_image_size: bool = False
    """Whether images in memory are resized once, on opening, and not by each view."""
    needs_root: bool = True
    """Whether it has files of the user's."""
    class_folders: bool = False
    """Whether root holds train/ and val/ (or test/), in each a folder of images per class."""
    opening_checks: bool = False
    """Whether `open` finds out what is missing or damaged, short of the images."""
    examine: Callable[[str, Sequence[Split]], None] | None = None
    """Look through the files of these splits, which `sts check` has time for."""
    unpacked: str | None = None
    """The folder in root that holds its files, if a download makes it: small enough to be read as a check."""
    labelled: bool | None = True
    """Whether its images have labels; None if only the files can say."""
    num_images: int | None = None
    """Training images, if the name says it."""

    def __str__(self) -> str:
        return f"{self.name} ({self.about})" if self.about else self.name

    def in_place(self, root: str | None, split: Split) -> bool:
        """Whether the files of a split are there, or a folder to download them into; listing them would take long."""
        if not self.needs_root:
            return True
        folders = {"train": ("train",), "test": ("val", "test")}[split] if self.class_folders else ("",)
        return root is not None and any((Path(root).expanduser() / name).exists() for name in folders)


DATASETS: dict[str, DatasetRecord] = {}
"""Every dataset by its name."""


def register_dataset(record: DatasetRecord) -> None:
    """Make a dataset known by its name, as if it were one of ours.

    `open` is given `data.root` and "train" or "test", and returns `ImageArrays`, `ImageFiles` or a class of yours
    derived from `StoredImages`. Every process that meets the name has to import the module that calls this.

        register_dataset(DatasetRecord(name="leaves", open=lambda root, split: ImageArrays(images, labels, classes)))
    """
    if DATASETS.get(record.name, record) != record:
        raise ConfigError(f"every dataset needs a name of its own, got {record.name!r} for a second one")
    DATASETS[record.name] = record


def dataset_record(name: str) -> DatasetRecord:
    """The dataset of that name."""
    if name not in DATASETS:
        raise ConfigError(f"dataset must be one of {', '.join(DATASETS)}, got {name!r}")
    return DATASETS[name]


def open_source(
    dataset: str, root: str | None, split: Split, *, image_size: int, layout: Layout | None = None
) -> Source:
    """The images of one split of a dataset."""
    record = dataset_record(dataset)
    if record.needs_root and root is None:
        raise ConfigError(f"dataset {dataset!r} needs to know where its files are, got root=None: set root")
    place = root if root is None or is_uri(root) else str(Path(root).expanduser())
    source = record.open(place, split, layout or Layout()) if record.takes_layout else record.open(place, split)
    if record.held_at_image_size and isinstance(source, ImageArrays):
        return source.resized(image_size)
    return source


def digits(split: Split) -> ImageArrays:
    """scikit-learn's 1,797 handwritten digits of 8x8 pixels as RGB; a fixed fifth is the test set."""
    rows = np.loadtxt(_digits_file(), delimiter=",")
    order = permutation(len(rows), seed=0, stream=TEST_SPLIT_STREAM)
    num_test = len(order) // 5
    chosen = rows[np.sort(order[:num_test] if split == "test" else order[num_test:])]
    gray = np.rint(chosen[:, :64] * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    return ImageArrays(
        torch.from_numpy(gray).repeat(1, 3, 1, 1), chosen[:, 64].astype(np.int64), tuple(map(str, range(10)))
    )


def _digits_file() -> Path:
    """The table of pixels and classes inside scikit-learn, whose import would take two seconds of every process."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise ConfigError("dataset 'digits' is part of scikit-learn, which is missing: pip install scikit-learn")
    return Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"


def cifar(dataset: str, root: str, split: Split) -> ImageArrays:
    """CIFAR-10 or CIFAR-100 as torchvision reads them, downloaded on first use."""
    from torchvision.datasets import CIFAR10, CIFAR100

    reader = CIFAR10 if dataset == "cifar10" else CIFAR100
    folder = Path(root) / reader.base_folder
    if not Path(root).is_dir():  # perhaps mistyped: better no download than one to a wrong place
        raise ConfigError(f"{dataset} is read from, or downloaded into, a folder that exists, got root {root!r}")
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
        raise ConfigError(f"{dataset} needs {reader.url} unpacked in {folder}, which failed ({error})") from error
    images = torch.from_numpy(np.ascontiguousarray(data.data.transpose(0, 3, 1, 2)))
    return ImageArrays(images, np.asarray(data.targets, dtype=np.int64), tuple(data.classes))


def arrays(path: Path, split: Split) -> ImageArrays:
    """An npz file with x_train, y_train, x_test, y_test; images are uint8 [N, H, W], [N, H, W, 1] or [N, H, W, 3]."""
    if not zipfile.is_zipfile(path):
        raise ConfigError(
            f"dataset 'arrays' reads one whole npz file, got root={str(path)!r}: check the path, or write the "
            f"file anew with numpy.savez"
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
            f"{path} must hold intact arrays of plain numbers, {name} cannot be read ({error}): write the file anew"
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


def _on_disk(read: Callable[[Path, Split], Source]) -> Callable[[str | None, Split], Source]:
    return lambda root, split: read(Path(str(root)), split)


for _record in (
    DatasetRecord(
        name="digits",
        about="embedded",
        open=lambda root, split: digits(split),
        statistics=((0.3053,) * 3, (0.3761,) * 3),  # measured on the training split at 8x8
        subject="digits",
        held_at_image_size=True,
        needs_root=False,
        num_images=1_438,
    ),
    DatasetRecord(
        name="cifar10",
        open=lambda root, split: cifar("cifar10", str(root), split),
        statistics=((0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)),  # kekmodel, dataset/cifar.py
        unpacked="cifar-10-batches-py",
        num_images=50_000,
    ),
    DatasetRecord(
        name="cifar100",
        open=lambda root, split: cifar("cifar100", str(root), split),
        statistics=((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),  # kekmodel, dataset/cifar.py
        unpacked="cifar-100-python",
        num_images=50_000,
    ),
    DatasetRecord(
        name="imagefolder",
        about="train/ and val/ with a folder per class",
        open=_on_disk(image_folder),
        in_files=True,
        class_folders=True,
        examine=check_imagenet,
        num_images=1_281_167,  # if it is ImageNet
    ),
    DatasetRecord(
        name="images",
        about="a folder of images without labels",
        open=_on_disk(unlabelled_images),
        in_files=True,
        labelled=False,
    ),
    DatasetRecord(name="arrays", about="an npz file", open=_on_disk(arrays), labelled=None),
    DatasetRecord(
        name="huggingface",
        about="a dataset's arrow or parquet files",
        open=table_images,
        in_files=True,
        takes_layout=True,
        opening_checks=True,
        labelled=None,
    ),
    DatasetRecord(
        name="webdataset",
        about="tar shards, in a folder or s3://",
        open=shard_images,
        in_files=True,
        takes_layout=True,
        opening_checks=True,
        labelled=None,
    ),
):
    register_dataset(_record)
