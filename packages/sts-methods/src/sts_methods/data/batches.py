"""Training data as a function of (seed, step), and data to evaluate on."""

from collections.abc import Iterator
from itertools import count, islice

import torch
from torch import Tensor

from sts_core import ConfigError
from sts_methods.batch import Batch, LabelledOrder
from sts_methods.data.config import DataConfig
from sts_methods.data.datasets import dataset_record, open_source
from sts_methods.data.evaluation_set import EvaluationDataset
from sts_methods.data.label_split import LabelSplit, label_split
from sts_methods.data.loaders import ArrayFeed, FileFeed, Pictures, Request
from sts_methods.data.sampler import Place, StatelessSampler
from sts_methods.data.sources import ImageArrays, Source, Statistics
from sts_methods.draws import LABELLED_ORDER_STREAM, ORDER_STREAM, Keys
from sts_methods.views.specs import VIEWS, WeakView

RANDOM_STEPS = 1024  # kekmodel dataset/cifar.py: labels repeated to fill as many batches, and shuffled


class TrainingData:
    """The batches of one rank. `steps(k)` depends on (seed, k) alone."""

    def __init__(
        self, source: Source, feed: ArrayFeed | FileFeed, split: LabelSplit | None, *, place: Place, ratio: int,
        seed: int, global_batch_size: int, device: torch.device, statistics: Statistics, labelled_order: LabelledOrder,
    ) -> None:  # fmt: skip
        self.num_samples = len(source)
        self.num_classes = None if source.classes is None else len(source.classes)
        self.label_split = split
        self._place = place
        self._labels, self._feed, self._device, self._statistics = source.labels, feed, device, statistics
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
        return self._feed.skipped

    @property
    def fingerprint(self) -> str:
        """Names the images and their labels, wherever they lie."""
        return self._feed.fingerprint

    def steps(self, start: int = 0) -> Iterator[tuple[Batch, ...]]:
        """The micro-batches of optimizer step `start`, `start` + 1, ... without end."""
        batches = (self._batch(*made) for made in self._feed.pictures(self._requests(start)))
        while True:
            yield tuple(islice(batches, self._place.accumulation))

    def _requests(self, start: int) -> Iterator[Request]:
        for step in count(start):
            unlabelled = self._sampler.batch(step)
            labelled = None if self._labelled_sampler is None else self._labelled_sampler.batch(step)
            for micro in range(self._place.accumulation):
                own = None if labelled is None else self._labelled_keys(self._place.share(labelled, micro))
                yield Request(step, self._place.share(unlabelled, micro), own)

    def _labelled_keys(self, drawn: Keys) -> Keys:
        """Positions in the labelled set as indices of the whole dataset."""
        assert self.label_split is not None
        return Keys(self.label_split.indices[drawn.indices], drawn.epochs)

    def _batch(self, request: Request, pictures: Pictures) -> Batch:
        views = tuple(normalise(x, self._statistics) for x in pictures.views)
        indices = torch.from_numpy(pictures.indices).to(self._device)
        if not pictures.labelled or self._labels is None:
            return Batch(views=views, indices=indices, step=request.step)
        labels = torch.from_numpy(self._labels[pictures.labelled_indices]).to(self._device)
        labelled, *teachers = (normalise(x, self._statistics) for x in pictures.labelled)
        return Batch(
            views=views, indices=indices, step=request.step, labelled=labelled, labels=labels,
            teachers_labelled=teachers[0] if teachers else None,
        )  # fmt: skip


def normalise(images: Tensor, statistics: Statistics) -> Tensor:
    """(x/255 − mean)/std per channel, in channels_last order."""
    mean, std = (torch.tensor(s, device=images.device) * 255 for s in statistics)
    x = images.permute(0, 2, 3, 1)
    width = x.shape[2]
    # One row of pixels at a time: a dimension of three channels alone would keep the CPU from vectorising (7 times).
    rows = x.reshape(-1, width * 3).to(torch.float32, copy=True).sub_(mean.repeat(width)).div_(std.repeat(width))
    return rows.reshape(x.shape).permute(0, 3, 1, 2)


def _label_split(config: DataConfig, source: Source, seed: int) -> LabelSplit | None:
    if not config.with_labels:
        return None
    if source.labels is None:
        raise ConfigError(f"{config.views} learns from labels, dataset {config.dataset!r} has none: add labels")
    num = len(source) if config.num_labels is None else config.num_labels
    return label_split(source.labels, num_labels=num, seed=seed)


def _feed(
    config: DataConfig, source: Source, split: LabelSplit | None, seed: int, device: torch.device
) -> ArrayFeed | FileFeed:
    views, num_labelled_views = config.make_views(), VIEWS[config.views].num_labelled_views
    on_device = device.type != "cpu" if config.device_augmentation is None else config.device_augmentation
    if isinstance(source, ImageArrays):
        if any(isinstance(view, WeakView) for view in views):
            source = source.resized(config.image_size)
        return ArrayFeed(
            source, views, seed=seed, device=device, on_device=on_device or device.type != "cpu",
            num_labelled_views=num_labelled_views,
        )  # fmt: skip
    return FileFeed(
        source, views, seed=seed, device=device, num_workers=config.num_workers, skip=config.on_error == "skip",
        on_device=on_device, labelled_set=None if split is None else split.indices,
        num_labelled_views=num_labelled_views,
    )  # fmt: skip


def build_training_data(
    config: DataConfig, *, seed: int, global_batch_size: int, accumulation: int = 1, rank: int = 0, world_size: int = 1,
    device: torch.device | None = None, labelled_order: LabelledOrder = "epochs",
) -> TrainingData:  # fmt: skip
    """The training data of one rank.

    `global_batch_size` counts the images of one optimizer step over all ranks and micro-batches: the labelled ones for
    semi-supervised views (64 in FixMatch, beside `unlabelled_ratio` times as many unlabelled), all images otherwise.
    `labelled_order` "epochs" shows every labelled image once before any comes again (Mean Teacher), "random" draws
    from a long list of all of them (FixMatch).
    """
    if global_batch_size < 1 or global_batch_size % (accumulation * world_size):
        raise ConfigError(
            f"global_batch_size must be a positive multiple of accumulation x workers = {accumulation} x {world_size}, "
            f"got {global_batch_size}"
        )
    device = device or torch.device("cpu")
    source = open_source(config.dataset, config.root, "train", image_size=config.image_size)
    split = _label_split(config, source, seed)
    return TrainingData(
        source,
        _feed(config, source, split, seed, device),
        split,
        place=Place(accumulation=accumulation, rank=rank, world_size=world_size),
        ratio=1 if split is None else config.unlabelled_ratio,
        seed=seed,
        global_batch_size=global_batch_size,
        device=device,
        statistics=dataset_record(config.dataset).statistics,
        labelled_order=labelled_order,
    )


def evaluation_data(config: DataConfig) -> tuple[EvaluationDataset, EvaluationDataset]:
    """The labelled (train, test) sets without augmentation."""
    train, test = (
        EvaluationDataset(
            open_source(config.dataset, config.root, split, image_size=config.image_size),
            image_size=config.image_size,
            statistics=dataset_record(config.dataset).statistics,
        )
        for split in ("train", "test")
    )
    return train, test
