"""Training data as a function of (seed, step), and data to evaluate on."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from sts_core.errors import ConfigError
from sts_methods.augment import augment_batch
from sts_methods.datasets import IMAGENET_STATISTICS, STATISTICS, DatasetName, ImageArrays, open_source
from sts_methods.draws import LABELLED_ORDER_STREAM, LABELLED_VIEW_STREAM, ORDER_STREAM, VIEW_STREAM
from sts_methods.evaluation import EvaluationDataset
from sts_methods.labels import LabelSplit, label_split
from sts_methods.method import Batch
from sts_methods.sampler import Keys, StatelessSampler
from sts_methods.views import (
    CropView,
    Views,
    WeakView,
    digit_views,
    multi_crop,
    two_views,
    two_weak_views,
    weak_and_strong,
)

Recipe = Literal["byol", "moco", "fixmatch", "mean_teacher", "dino"]
OnError = Literal["raise", "skip"]
SEMI_SUPERVISED = ("fixmatch", "mean_teacher")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which images, and which views of them."""

    dataset: DatasetName = "digits"
    """digits (embedded), cifar10, cifar100, imagefolder (train/ and val/ with a folder per class), images (a folder of
    images without labels) or arrays (an npz file)."""
    root: str | None = None
    """Folder or file of the dataset; digits need none."""
    image_size: int = 32
    """Side of the views in pixels."""
    recipe: Recipe = "byol"
    """Whose views: byol, moco, fixmatch, mean_teacher or dino."""
    num_labels: int | None = None
    """Labelled images of a semi-supervised recipe, the same number of each class; None labels all."""
    unlabelled_ratio: int = 7
    """Unlabelled images per labelled one in a batch of a semi-supervised recipe (FixMatch's mu)."""
    num_local_crops: int = 8
    """DINO's small crops per image."""
    crop_scale_min: float | None = None
    """Smallest share of the area that a crop covers; None is the recipe's own."""
    num_workers: int = 0
    """Processes that read image files; images in memory need none."""
    on_error: OnError = "raise"
    """An unreadable image stops the run, or is skipped: counted, reported and replaced by the next readable one."""
    device_augmentation: bool | None = None
    """Colour and blur on the training device, batched; None does so on anything but a CPU."""

    def __post_init__(self) -> None:
        for name, choices in (("dataset", DatasetName), ("recipe", Recipe), ("on_error", OnError)):
            if (value := getattr(self, name)) not in get_args(choices):
                options = ", ".join(get_args(choices))
                raise ConfigError(f"{name} must be one of {options}, got {value!r}: choose one of these")
        for name, least in (("image_size", 8), ("unlabelled_ratio", 1), ("num_local_crops", 0), ("num_workers", 0)):
            if (value := getattr(self, name)) < least:
                raise ConfigError(f"{name} must be at least {least}, got {value!r}: choose a larger number")
        if self.crop_scale_min is not None and not 0.0 < self.crop_scale_min <= 1.0:
            raise ConfigError(
                f"crop_scale_min must be in (0, 1], got {self.crop_scale_min!r}: it is a share of the area"
            )

    def views(self) -> Views:
        """The views that this config asks for."""
        views = _recipe_views(self)
        if self.crop_scale_min is None:
            return views
        from dataclasses import replace

        low = self.crop_scale_min
        return tuple(
            replace(v, crop_scale=(low, max(low, v.crop_scale[1])))
            if isinstance(v, CropView) and v.size == self.image_size
            else v
            for v in views
        )


def _recipe_views(config: DataConfig) -> Views:
    size = config.image_size
    if config.dataset == "digits":
        return digit_views(config.recipe, image_size=size, num_local=config.num_local_crops)
    if config.recipe == "fixmatch":
        return weak_and_strong(image_size=size)
    if config.recipe == "mean_teacher":
        return two_weak_views(image_size=size)
    if config.recipe == "dino":
        return multi_crop(image_size=size, num_local=config.num_local_crops)
    return two_views(recipe=config.recipe, image_size=size)


def normalise(images: Tensor, dataset: DatasetName) -> Tensor:
    """(x/255 − mean)/std per channel, in channels_last order."""
    mean, std = (torch.tensor(s, device=images.device)[None, :, None, None] for s in _statistics(dataset))
    x = images.to(torch.float32, memory_format=torch.channels_last)
    return (x - mean * 255).div_(std * 255)


def _statistics(dataset: DatasetName) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return STATISTICS.get(dataset, IMAGENET_STATISTICS)


class TrainingData:
    """The batches of one rank. `steps(k)` depends on (seed, k) alone."""

    def __init__(
        self, config: DataConfig, source: ImageArrays, *, seed: int, global_batch_size: int, accumulation: int,
        rank: int, world_size: int, device: torch.device,
    ) -> None:  # fmt: skip
        self.num_samples = len(source)
        self.num_classes = None if source.classes is None else len(source.classes)
        self._config, self._seed, self._device = config, seed, device
        self._accumulation, self._rank, self._world_size = accumulation, rank, world_size
        self._views = config.views()
        self._images = source.images.to(device)
        self.label_split = _label_split(config, source, seed)
        ratio = 1 if self.label_split is None else config.unlabelled_ratio
        self._sampler = StatelessSampler(
            num_samples=len(source),
            batch_size=global_batch_size * ratio,
            seed=seed,
            stream=ORDER_STREAM,
            drop_last=True,
        )
        self._labelled_sampler = None
        if self.label_split is not None:
            assert source.labels is not None
            self._labels = torch.from_numpy(source.labels).to(device)
            self._labelled_sampler = StatelessSampler(
                num_samples=self.label_split.num_labels, batch_size=global_batch_size, seed=seed,
                stream=LABELLED_ORDER_STREAM, drop_last=False,
            )  # fmt: skip
        self.steps_per_epoch = self._sampler.steps_per_epoch

    def steps(self, start: int = 0) -> Iterator[tuple[Batch, ...]]:
        """Micro-batches of optimizer step `start`, `start` + 1, ... without end."""
        step = start
        while True:
            yield tuple(self._micro_batch(step, micro) for micro in range(self._accumulation))
            step += 1

    def _micro_batch(self, step: int, micro: int) -> Batch:
        keys = self._share(self._sampler.batch(step), micro)
        views = tuple(self._view(number, keys, VIEW_STREAM) for number in range(len(self._views)))
        indices = torch.from_numpy(keys.indices).to(self._device)
        if self._labelled_sampler is None or self.label_split is None:
            return Batch(views=views, indices=indices, step=step)
        drawn = self._share(self._labelled_sampler.batch(step), micro)
        labelled = Keys(self.label_split.indices[drawn.indices], drawn.epochs)
        labels = self._labels[torch.from_numpy(labelled.indices).to(self._device)]
        images = self._view(0, labelled, LABELLED_VIEW_STREAM)
        return Batch(views=views, indices=indices, step=step, labelled=images, labels=labels)

    def _share(self, keys: Keys, micro: int) -> Keys:
        micro_keys = keys.share(part=micro, num_parts=self._accumulation)
        return micro_keys.share(part=self._rank, num_parts=self._world_size)

    def _view(self, number: int, keys: Keys, stream: int) -> Tensor:
        images = self._images[torch.from_numpy(keys.indices).to(self._device)]
        x = augment_batch(images, self._views[number], keys, seed=self._seed, stream=stream + number)
        return normalise(x, self._config.dataset)


def _label_split(config: DataConfig, source: ImageArrays, seed: int) -> LabelSplit | None:
    if config.recipe not in SEMI_SUPERVISED:
        return None
    if source.labels is None:
        raise ConfigError(f"the recipe {config.recipe} needs labels, dataset {config.dataset!r} has none: add labels")
    num = len(source) if config.num_labels is None else config.num_labels
    return label_split(source.labels, num_labels=num, seed=seed)


def build_training_data(
    config: DataConfig, *, seed: int, global_batch_size: int, accumulation: int = 1, rank: int = 0, world_size: int = 1,
    device: torch.device | None = None,
) -> TrainingData:  # fmt: skip
    """The training data of one rank.

    `global_batch_size` counts the images of one optimizer step over all ranks and micro-batches: the labelled ones for
    a semi-supervised recipe (64 in FixMatch, beside `unlabelled_ratio` times as many unlabelled), all images otherwise.
    """
    if global_batch_size < 1 or global_batch_size % (accumulation * world_size):
        raise ConfigError(
            f"global_batch_size must be a positive multiple of accumulation x workers = {accumulation} x {world_size}, "
            f"got {global_batch_size}: choose such a multiple"
        )
    source = open_source(config.dataset, config.root, "train", image_size=config.image_size)
    assert isinstance(source, ImageArrays)
    if any(isinstance(view, WeakView) for view in config.views()):
        source = source.resized(config.image_size)
    return TrainingData(
        config, source, seed=seed, global_batch_size=global_batch_size, accumulation=accumulation, rank=rank,
        world_size=world_size, device=device or torch.device("cpu"),
    )  # fmt: skip


def evaluation_data(config: DataConfig) -> tuple[EvaluationDataset, EvaluationDataset]:
    """The labelled (train, test) sets without augmentation."""
    statistics = _statistics(config.dataset)
    train, test = (
        EvaluationDataset(
            open_source(config.dataset, config.root, split, image_size=config.image_size),
            image_size=config.image_size, statistics=statistics,
        )
        for split in ("train", "test")
    )  # fmt: skip
    return train, test
