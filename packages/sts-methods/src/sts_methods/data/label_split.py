"""Which images keep their labels: balanced, reproducible from a seed, and hashed so that a run can prove its split."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sts_core import ConfigError
from sts_methods.draws import LABEL_SPLIT_STREAM, IntArray, permutation


@dataclass(frozen=True)
class LabelSplit:
    """The labelled images of a semi-supervised run."""

    indices: IntArray
    """Sorted indices of the labelled images in the training set."""
    sha256: str
    """SHA-256 of these indices and their labels, as decimal text: equal hashes mean the same labelled set."""

    @property
    def num_labels(self) -> int:
        return len(self.indices)

    def save(self, path: Path) -> None:
        """Write the split as JSON, for people and other programs: a run finds it again from its seed."""
        path.parent.mkdir(parents=True, exist_ok=True)
        values = {"sha256": self.sha256, "num_labels": self.num_labels, "indices": self.indices.tolist()}
        path.write_text(json.dumps(values) + "\n")


def label_split(labels: npt.ArrayLike, *, num_labels: int, seed: int) -> LabelSplit:
    """Choose `num_labels` images with the same number of every class.

    The choice depends on (labels, num_labels, seed) alone, and within a seed the splits are nested: the 40 labels are
    among the 250. Classes differ by at most one image when `num_labels` is not a multiple of their number.
    """
    classes = np.asarray(labels, dtype=np.int64)
    present, sizes = np.unique(classes, return_counts=True)
    if not len(present) <= num_labels <= len(classes):
        raise ConfigError(
            f"num_labels must lie between the number of classes ({len(present)}) and of images ({len(classes)}), "
            f"got {num_labels}: choose a number in that range"
        )
    if num_labels < len(classes) and num_labels // len(present) > sizes.min():
        raise ConfigError(
            f"a balanced split of {num_labels} labels needs {num_labels // len(present)} images of every class, the "
            f"smallest class has {sizes.min()}: choose fewer labels"
        )
    order = permutation(len(classes), seed=seed, stream=LABEL_SPLIT_STREAM)
    indices = np.sort(_deal(classes, order)[:num_labels])
    return LabelSplit(indices, _digest(indices, classes[indices]))


def _deal(classes: IntArray, order: IntArray) -> IntArray:
    """`order` rearranged so that the classes take turns: the first of each class, then the second of each, ..."""
    rank = np.empty_like(order)
    shuffled = classes[order]
    for label in np.unique(classes):
        members = np.flatnonzero(shuffled == label)
        rank[members] = np.arange(len(members))
    return order[np.argsort(rank, kind="stable")]


def _digest(indices: IntArray, labels: IntArray) -> str:
    text = ",".join(f"{index}:{label}" for index, label in zip(indices, labels, strict=True))
    return hashlib.sha256(text.encode()).hexdigest()
