"""Labelled images without augmentation, for probes and nearest neighbours."""

import torch
from torch import Tensor
from torch.utils.data import Dataset

from sts_core.errors import ConfigError
from sts_methods.datasets import ImageArrays, Source

Statistics = tuple[tuple[float, ...], tuple[float, ...]]


class EvaluationDataset(Dataset[tuple[Tensor, int]]):
    """Items are (normalised float image [3, size, size], class)."""

    def __init__(self, source: Source, *, image_size: int, statistics: Statistics) -> None:
        if source.labels is None or source.classes is None:
            raise ConfigError("evaluation needs labelled images, this dataset has none: use a dataset with labels")
        assert isinstance(source, ImageArrays)
        self.classes = source.classes
        self.num_classes = len(source.classes)
        self.targets = source.labels
        self._source = source.resized(image_size)
        self._mean, self._std = (torch.tensor(s)[:, None, None] * 255 for s in statistics)

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self._source.images[index].float()
        return (image - self._mean) / self._std, int(self.targets[index])
