"""Images as the loaders see them: arrays held in memory, or encoded ones read one by one."""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from sts_methods.draws import IntArray

Split = Literal["train", "test"]


# Mean and standard deviation of the channels, of values in [0, 1].
Statistics = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where images and classes stand in files that hold more than images; None leaves it to the files."""

    image: str | None = None
    """The column, or the last part of a shard's members, that holds the images."""
    label: str | None = None
    """The same of their classes."""
    train: str | None = None
    """Name of the split to train on."""
    test: str | None = None
    """Name of the split to evaluate on."""
    cache: str | None = None
    """Folder for what is found out once."""


@dataclass(frozen=True)
class ImageArrays:
    """Images in memory."""

    images: Tensor
    """uint8 [N, 3, H, W]."""
    labels: IntArray | None
    """Class of each image, or None."""
    classes: tuple[str, ...] | None
    """Names of the classes, or None."""
    original: "ImageArrays | None" = None
    """What these were resized from, if they were."""

    def __len__(self) -> int:
        return len(self.images)

    def fingerprint(self) -> str:
        """Number and hash of pixels and labels, before resizing: machines may round its results differently."""
        if self.original is not None:
            return self.original.fingerprint()
        return fingerprint(len(self), self.images.numpy(), self.labels)

    def resized(self, size: int) -> "ImageArrays":
        """The same images at `size` x `size`."""
        if self.images.shape[-2:] == (size, size):
            return self
        images = F.interpolate(self.images, (size, size), mode="bicubic", antialias=True)
        return ImageArrays(images, self.labels, self.classes, original=self)


class Paths(Sequence[str]):
    """Many paths below a folder in one block of memory.

    A million Python strings would be copied into every loader process, as reference counts touch their pages.
    """

    def __init__(self, paths: Iterable[str], *, folder: str | Path = "") -> None:
        self._folder = os.path.join(folder, "")
        encoded = [path.removeprefix(self._folder).encode("utf-8", "surrogateescape") for path in paths]
        self._ends = np.cumsum([0, *map(len, encoded)])
        self._text = np.frombuffer(b"".join(encoded), dtype=np.uint8)

    def fingerprint(self, *more: IntArray | None) -> str:
        """Number and hash of the paths, relative to their folder, and of `more`: a folder that is moved keeps its."""
        return fingerprint(len(self), self._text, self._ends, *more)

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[k] for k in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        path = self._text[self._ends[index] : self._ends[index + 1]].tobytes()
        return self._folder + path.decode("utf-8", "surrogateescape")


def fingerprint(num: int, *parts: np.ndarray[Any, Any] | None) -> str:
    """The number of images and a hash of what tells them from others."""
    digest = hashlib.sha256()
    for part in parts:
        if part is not None:
            digest.update(f"{part.dtype.str} {part.shape} ".encode())
            digest.update(np.ascontiguousarray(part).reshape(-1).data)
    return f"{num} images, sha256 {digest.hexdigest()[:16]}"


class StoredImages(ABC):
    """Images outside memory, each encoded as JPEG, PNG and so on, and read when it is needed, by any process."""

    labels: IntArray | None
    """Class of each image, or None."""
    classes: tuple[str, ...] | None
    """Names of the classes, or None."""

    @property
    def waits(self) -> bool:
        """Whether a read waits for a network, so that many are best under way at once."""
        return False

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def fingerprint(self) -> str:
        """Number and hash of what tells these images from others, wherever they lie."""

    @abstractmethod
    def name(self, index: int) -> str:
        """What errors call an image."""

    @abstractmethod
    def encoded(self, index: int) -> bytes:
        """The bytes of an image, or an OSError or ValueError that says why not."""


@dataclass(frozen=True)
class ImageFiles(StoredImages):
    """Images in files of their own."""

    paths: Paths
    """Sorted, so that an index means the same image on every machine."""
    labels: IntArray | None
    classes: tuple[str, ...] | None

    def __len__(self) -> int:
        return len(self.paths)

    def fingerprint(self) -> str:
        """Number and hash of relative paths and labels; the files are not read."""
        return self.paths.fingerprint(self.labels)

    def name(self, index: int) -> str:
        """Its path."""
        return self.paths[index]

    def encoded(self, index: int) -> bytes:
        """The content of its file."""
        return Path(self.paths[index]).read_bytes()


Source = ImageArrays | StoredImages
