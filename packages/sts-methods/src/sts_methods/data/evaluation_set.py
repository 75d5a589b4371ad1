"""Labelled images without augmentation, for probes and nearest neighbours."""

import logging
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from sts_core import ConfigError
from sts_methods.data.image_files import ImageReadError, read_image
from sts_methods.data.sources import ImageArrays, ImageFiles, Source, Statistics
from sts_methods.views.per_image import resize_centre

logger = logging.getLogger(__name__)

T = TypeVar("T")

MARGIN = 256 / 224  # Resize(256), CenterCrop(224): MoCo, main_lincls.py


class EvaluationDataset(Dataset[tuple[Tensor, int]]):
    """Items are (normalised float image [3, size, size], class).

    Images in memory are resized as a whole; files as usual for ImageNet: shorter side to 256/224 of the size, centre.
    With `skip` the next readable image, and its class, stand in for one that cannot be read, as in training.
    """

    def __init__(self, source: Source, *, image_size: int, statistics: Statistics, skip: bool = False) -> None:
        if source.labels is None or source.classes is None:
            raise ConfigError("evaluation needs labelled images, this dataset has none: use a dataset with labels")
        self.classes = source.classes
        self.num_classes = len(source.classes)
        self.targets = source.labels
        self._source = source.resized(image_size) if isinstance(source, ImageArrays) else source
        if isinstance(source, ImageFiles):
            self.paths = source.paths
        self._image_size, self._skip = image_size, skip
        self._skipped: set[int] = set()
        self._mean, self._std = (torch.tensor(s)[:, None, None] * 255 for s in statistics)

    def __len__(self) -> int:
        return len(self._source)

    def fingerprint(self) -> str:
        """Names the images and their labels, wherever they lie."""
        return self._source.fingerprint()

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        shown, pixels = self._readable(index, self._pixels)
        return (pixels - self._mean) / self._std, int(self.targets[shown])

    def whole(self) -> "WholeImages | None":
        """The same images neither resized nor cropped; None where they are in memory."""
        return None if isinstance(self._source, ImageArrays) else WholeImages(self)

    def whole_image(self, index: int) -> tuple[Image.Image, int]:
        """An item of `whole`."""
        assert not isinstance(self._source, ImageArrays)
        shown, pixels = self._readable(index, partial(read_image, self._source))
        return Image.fromarray(pixels), int(self.targets[shown])

    def _readable(self, index: int, read: Callable[[int], T]) -> tuple[int, T]:
        """The image or, with `skip`, the first one from `index` on, in a circle, that can be read."""
        if not self._skip:
            return index, read(index)
        for turn in range(len(self)):
            place = (index + turn) % len(self)
            try:
                return place, read(place)
            except ImageReadError as error:
                if place not in self._skipped:
                    self._skipped.add(place)
                    logger.warning("skipped image %d: %s", place, error)  # the same words from every process
        raise ImageReadError(f"none of the {len(self)} images is readable: set on_error to raise to see why")

    def _pixels(self, index: int) -> Tensor:
        if isinstance(self._source, ImageArrays):
            return self._source.images[index].float()
        image = resize_centre(read_image(self._source, index), size=self._image_size, margin=MARGIN)
        return torch.from_numpy(image).permute(2, 0, 1).float()


class WholeImages(Dataset[tuple[Image.Image, int]]):
    """Items are (PIL image, class), for whoever crops them anew."""

    def __init__(self, images: EvaluationDataset) -> None:
        self._images = images
        self.classes, self.targets = images.classes, images.targets

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return self._images.whole_image(index)
