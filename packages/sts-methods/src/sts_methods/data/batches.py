"""Training data as a function of (seed, step), and data to evaluate on."""

import os
from collections.abc import Iterator
from functools import lru_cache
from itertools import count, islice

import torch
from torch import Tensor

from sts_core import ConfigError
from sts_methods.batch import Batch, LabelledOrder
from sts_methods.data.config import DataConfig
from sts_methods.data.datasets import IMAGENET_STATISTICS
from sts_methods.data.evaluation_set import EvaluationDataset
from sts_methods.data.file_loaders import FileLoader
from sts_methods.data.label_split import LabelSplit, label_split
from sts_methods.data.loaders import ArrayLoader, Pictures, Request
from sts_methods.data.sampler import Place, StatelessSampler
from sts_methods.data.sources import ImageArrays, Source, Statistics, StoredImages
from sts_methods.draws import LABELLED_ORDER_STREAM, ORDER_STREAM, Keys
from sts_methods.views.specs import VIEWS, CropView, WeakView

ENOUGH_PROCESSES = 8
"""Loader processes that keep up with a GPU without its help: about 300 images/s each (benchmarks/input.py), while MoCo
on ResNet-50 in mixed precision takes some 1,900 on an A100."""
IMAGENET_CLASSES = 1000
RANDOM_STEPS = 1024  # kekmodel dataset/cifar.py: labels repeated to fill as many batches, and shuffled


class TrainingData:
    """The batches of one rank. `steps(k)` depends on (seed, k) alone."""

    note: str | None = None
    """Where images are augmented, if that was chosen by the machine."""

    def __init__(
        self, source: Source, loader: ArrayLoader | FileLoader, split: LabelSplit | None, *, place: Place, ratio: int,
        seed: int, global_batch_size: int, device: torch.device, statistics: Statistics, labelled_order: LabelledOrder,
    ) -> None:  # fmt: skip
        self.num_samples = len(source)
        self.num_classes = None if source.classes is None else len(source.classes)
        self.label_split = split
        self._place, self._ratio = place, ratio
        self.shares = place.shares(global_batch_size)
        """How many images of a micro-batch each rank has, if that differs."""
        self._labels, self._loader, self._device, self._statistics = source.labels, loader, device, statistics
        self._sampler = StatelessSampler(
            num_samples=len(source),
            batch_size=global_batch_size * ratio,
            seed=seed,
            stream=ORDER_STREAM,
            drop_last=True,
        )
        self._labelled_sampler = None
        if split is not None:
            self._labelled_sampler = StatelessSampler(
                num_samples=split.num_labels, batch_size=global_batch_size, seed=seed, stream=LABELLED_ORDER_STREAM,
                drop_last=False,
                copies=1 if labelled_order == "epochs" else -(-RANDOM_STEPS * global_batch_size // split.num_labels),
            )  # fmt: skip
        self.steps_per_epoch = self._sampler.steps_per_epoch

    @property
    def skipped(self) -> dict[int, str]:
        """The images that could not be read so far, by index, each with the reason."""
        return self._loader.skipped

    @property
    def fingerprint(self) -> str:
        """Names the images and their labels, wherever they lie."""
        return self._loader.fingerprint

    def steps(self, start: int = 0) -> Iterator[tuple[Batch, ...]]:
        """The micro-batches of optimizer step `start`, `start` + 1, ... without end."""
        batches = (self._batch(*made) for made in self._loader.pictures(self._requests(start)))
        while True:
            yield tuple(islice(batches, self._place.accumulation))

    def _requests(self, start: int) -> Iterator[Request]:
        for step in count(start):
            unlabelled = self._sampler.batch(step)
            labelled = None if self._labelled_sampler is None else self._labelled_sampler.batch(step)
            for micro in range(self._place.accumulation):
                own = None if labelled is None else self._labelled_keys(self._place.share(labelled, micro))
                yield Request(step, self._place.share(unlabelled, micro, group=self._ratio), own)

    def _labelled_keys(self, drawn: Keys) -> Keys:
        """Positions in the labelled set as indices of the whole dataset."""
        assert self.label_split is not None
        return Keys(self.label_split.indices[drawn.indices], drawn.epochs)

    def _batch(self, request: Request, pictures: Pictures) -> Batch:
        views, labelled = (
            tuple(normalise(x, self._statistics) for x in made) for made in (pictures.views, pictures.labelled)
        )
        return Batch(
            views=views, indices=pictures.indices, step=request.step, labelled=labelled[0] if labelled else None,
            labels=pictures.labels, teachers_labelled=labelled[1] if len(labelled) > 1 else None,
            shares=self.shares,
        )  # fmt: skip


def normalise(images: Tensor, statistics: Statistics) -> Tensor:
    """(x/255 − mean)/std per channel, in channels_last order."""
    x = images.permute(0, 2, 3, 1)
    # One row of pixels at a time: a dimension of three channels alone would keep the CPU from vectorising (7 times).
    mean, std = _row_statistics(statistics, x.shape[2], images.device)
    rows = x.reshape(-1, len(mean)).to(torch.float32, copy=True).sub_(mean).div_(std)
    return rows.reshape(x.shape).permute(0, 3, 1, 2)


@lru_cache(maxsize=32)
def _row_statistics(statistics: Statistics, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each value in a row of pixels, kept on the device."""
    mean, std = ((torch.tensor(s) * 255).repeat(width).to(device) for s in statistics)
    return mean, std


def _label_split(config: DataConfig, source: Source, seed: int) -> LabelSplit | None:
    if not config.with_labels:
        return None
    if source.labels is None:
        raise ConfigError(f"{config.views} learns from labels, dataset {config.dataset!r} has none: add labels")
    num = len(source) if config.num_labels is None else config.num_labels
    return label_split(source.labels, num_labels=num, seed=seed)


def augments_on_device(config: DataConfig, device: torch.device) -> bool:
    """Whether colour and blur of image files are the device's work, not that of the loader's processes."""
    if config.device_augmentation is not None or device.type == "cpu":
        return bool(config.device_augmentation)
    return _busy_processes(config) < ENOUGH_PROCESSES


def _busy_processes(config: DataConfig) -> int:
    """The loader processes of a rank that have a core each."""
    return min(config.num_workers, num_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def num_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _augmentation_note(config: DataConfig, device: torch.device) -> str | None:
    """What `augments_on_device` has chosen, in words, where there was a choice."""
    crops = any(isinstance(view, CropView) for view in config.make_views())
    if config.device_augmentation is not None or device.type == "cpu" or not crops:
        return None
    where = "on the GPU" if augments_on_device(config, device) else "in the loader's processes"
    return (
        f"colour and blur {where}: {_busy_processes(config)} loader processes per GPU have a core each "
        f"(from {ENOUGH_PROCESSES} on they do it; data.device_augmentation decides otherwise)"
    )


def _statistics_note(config: DataConfig, source: Source) -> str | None:
    """That images which need not be like ImageNet's are normalised as they are, unless the config says how."""
    imagenet = source.classes is not None and len(source.classes) == IMAGENET_CLASSES
    if config.statistics != IMAGENET_STATISTICS or imagenet:
        return None
    theirs = ""
    if isinstance(source, ImageArrays):
        pixels = source.images[:1000].float() / 255
        mean, std = (",".join(f"{x:.3f}" for x in f((0, 2, 3))) for f in (pixels.mean, pixels.std))
        theirs = f"; theirs are {mean} and {std}"
    return f"images are normalised with ImageNet's mean and deviation{theirs} (data.mean and data.std decide otherwise)"


def _loader(
    config: DataConfig, source: Source, split: LabelSplit | None, seed: int, device: torch.device
) -> ArrayLoader | FileLoader:
    views, num_labelled_views = config.make_views(), VIEWS[config.views].num_labelled_views
    on_device = augments_on_device(config, device)
    if isinstance(source, ImageArrays):
        if any(isinstance(view, WeakView) for view in views):
            source = source.resized(config.image_size)
        return ArrayLoader(
            source, views, seed=seed, device=device, on_device=on_device or device.type != "cpu",
            num_labelled_views=num_labelled_views,
        )  # fmt: skip
    return FileLoader(
        source, views, seed=seed, device=device, num_workers=config.num_workers, skip=config.on_error == "skip",
        on_device=on_device, labelled_set=None if split is None else split.indices,
        num_labelled_views=num_labelled_views,
    )  # fmt: skip


def build_training_data(
    config: DataConfig, *, seed: int, global_batch_size: int, accumulation: int = 1, rank: int = 0, world_size: int = 1,
    device: torch.device | None = None, labelled_order: LabelledOrder = "epochs",
) -> TrainingData:  # fmt: skip
    """The training data of one rank.

    >>> data = build_training_data(DataConfig(image_size=16), seed=0, global_batch_size=64)
    >>> (batch,) = next(data.steps(0))
    >>> [tuple(view.shape) for view in batch.views]
    [(64, 3, 16, 16), (64, 3, 16, 16)]

    `config` says which images and views, `seed` keys their order and augmentations, and `rank` of `world_size` gets its
    share of every step on `device`, in `accumulation` micro-batches. `global_batch_size` counts the images of one
    optimizer step over all ranks and micro-batches: the labelled ones for semi-supervised views (64 in FixMatch, beside
    `unlabelled_ratio` times as many unlabelled), all images otherwise. `labelled_order` "epochs" shows every labelled
    image once before any comes again (Mean Teacher), "random" draws from a long list of all of them (FixMatch).
    """
    if global_batch_size % accumulation or global_batch_size < accumulation * world_size:
        raise ConfigError(
            f"global_batch_size must be a multiple of accumulation={accumulation} with an image for each of "
            f"{world_size} workers in every micro-batch, got {global_batch_size}"
        )
    device = device or torch.device("cpu")
    source = config.open("train")
    split = _label_split(config, source, seed)
    data = TrainingData(
        source,
        _loader(config, source, split, seed, device),
        split,
        place=Place(accumulation=accumulation, rank=rank, world_size=world_size),
        ratio=1 if split is None else config.unlabelled_ratio,
        seed=seed,
        global_batch_size=global_batch_size,
        device=device,
        statistics=config.statistics,
        labelled_order=labelled_order,
    )
    notes = [_statistics_note(config, source)]
    if isinstance(source, StoredImages):
        notes.append(_augmentation_note(config, device))
    data.note = "\n".join(note for note in notes if note) or None
    return data


def evaluation_data(config: DataConfig) -> tuple[EvaluationDataset, EvaluationDataset]:
    """The labelled (train, test) sets without augmentation."""
    train, test = (
        EvaluationDataset(
            config.open(split),
            image_size=config.image_size,
            statistics=config.statistics,
            skip=config.on_error == "skip",
        )
        for split in ("train", "test")
    )
    return train, test
