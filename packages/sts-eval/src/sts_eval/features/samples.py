"""Reading labelled datasets for evaluation: which file a sample is, what cannot be read, which classes are missing."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from sts_core.weights import some
from sts_eval.errors import DataError


def sample_name(dataset: Any, index: int) -> str:
    """The file behind a sample where the dataset or the one it wraps lists files, else `sample <index>`."""
    for attribute in ("samples", "imgs", "paths", "files"):
        listed = getattr(dataset, attribute, None)
        if isinstance(listed, Sequence) and index < len(listed):
            entry = listed[index]
            return str(entry[0] if isinstance(entry, tuple) else entry)
    inner = getattr(dataset, "dataset", None)
    if inner is None:
        return f"sample {index}"
    indices = getattr(dataset, "indices", None)  # torch.utils.data.Subset
    return sample_name(inner, index if indices is None else int(indices[index]))


@dataclass(frozen=True)
class Unreadable:
    """What a loader process sends in place of a sample; an exception would arrive wrapped in its traceback."""

    name: str
    reason: str

    def __str__(self) -> str:
        if self.name in self.reason:  # a reader of ours has said it all
            return self.reason
        return f"every image must be readable, but {self.name} is not ({self.reason}): repair or remove it"


class ReadableSamples(Dataset[Any]):
    """A dataset whose failures are values, so that the main process can name the file in one sentence."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        try:
            image, label = self.dataset[index]
        except Exception as error:  # whatever a decoder raises: the remedy is the same
            # Decoders put the path or a stream's address in front; the first line of the reason is enough.
            reason = str(error) if isinstance(error, DataError) else f"{type(error).__name__}: {error}"
            return Unreadable(sample_name(self.dataset, index), reason.splitlines()[0])
        if not isinstance(image, Tensor) or not image.is_floating_point():
            kind = str(image.dtype) if isinstance(image, Tensor) else type(image).__name__
            return Unreadable(sample_name(self.dataset, index), f"{kind} in place of a normalised float tensor")
        return image, int(label)


def _collate(samples: list[Any]) -> Unreadable | tuple[Tensor, Tensor]:
    for sample in samples:
        if isinstance(sample, Unreadable):
            return sample
    if len({sample[0].shape for sample in samples}) > 1:
        shapes = sorted({tuple(sample[0].shape) for sample in samples})
        return Unreadable("a batch", f"images of different shapes {shapes}, so that they do not stack")
    return torch.stack([sample[0] for sample in samples]), torch.tensor([sample[1] for sample in samples])


def load_batches(
    dataset: Any, batches: Sequence[Sequence[int]], *, num_workers: int = 0, pin_memory: bool = False
) -> Iterator[tuple[Tensor, Tensor]]:
    """Images [B, C, H, W] and labels [B] of each list of indices, in order."""
    loader: DataLoader[Any] = DataLoader(
        ReadableSamples(dataset),
        batch_sampler=batches,  # type: ignore[arg-type]  # any sized iterable of index lists
        num_workers=num_workers,
        collate_fn=_collate,
        pin_memory=pin_memory,
    )
    for loaded in loader:
        if isinstance(loaded, Unreadable):
            raise DataError(str(loaded))
        images, labels = loaded
        yield images, labels


def class_names(dataset: Any) -> tuple[str, ...] | None:
    """The names of the classes in order of their labels, where the dataset or the one it wraps knows them."""
    names = getattr(dataset, "classes", None)
    if isinstance(names, Sequence) and not isinstance(names, str):
        return tuple(str(name) for name in names)
    inner = getattr(dataset, "dataset", None)
    return None if inner is None else class_names(inner)


def labels_of(dataset: Any) -> Tensor | None:
    """All labels, where the dataset or the one it wraps lists them, so that no image need be decoded."""
    targets = getattr(dataset, "targets", None)
    if targets is not None and len(targets) == len(dataset):
        return torch.as_tensor(targets, dtype=torch.int64)
    inner = getattr(dataset, "dataset", None)
    found = None if inner is None else labels_of(inner)
    indices = getattr(dataset, "indices", None)  # torch.utils.data.Subset
    return found if found is None or indices is None else found[torch.as_tensor(indices)]


def check_same_classes(train: tuple[str, ...] | None, test: tuple[str, ...] | None) -> None:
    """Raise where the two splits number their classes differently.

    A class folder that is missing in one split shifts all labels behind it: accuracy collapses and nothing warns.
    """
    if train is None or test is None or train == test:
        return
    only = sorted(set(train) ^ set(test))
    what = f"{some(only)} occur in one split only" if only else "their order differs"
    raise DataError(
        f"training and test data must have the same classes in the same order, but {what}: align the splits"
    )


def check_labels(
    labels: Tensor, num_classes: int, *, split: str, names: tuple[str, ...] | None = None, allow_missing: bool = False
) -> None:
    """Raise unless `labels` lie in [0, num_classes) and, where that is asked for, each class occurs."""
    if len(labels) == 0:
        raise DataError(f"the {split} data must hold at least one image, but it is empty: check its folder")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        raise DataError(f"{split} labels must lie in 0..{num_classes - 1}, got {low}..{high}: renumber the classes")
    missing = (torch.bincount(labels, minlength=num_classes) == 0).nonzero().flatten().tolist()
    if missing and not allow_missing:
        listed = some([names[i] if names else i for i in missing])
        raise DataError(
            f"each of the {num_classes} classes needs an image in the {split} data, but it has none of {listed}: "
            "complete the data, or set allow_missing_classes"
        )
