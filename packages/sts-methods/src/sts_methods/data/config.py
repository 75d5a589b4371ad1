"""Which images, and which views of them."""

from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from sts_core import ConfigError
from sts_core.fields import added, formerly, incidental
from sts_methods.data.datasets import DATASETS, dataset_record, open_source
from sts_methods.data.sources import Layout, Source, Split, Statistics
from sts_methods.views.specs import VIEWS, CropView, Interpolation, View, Views
from sts_methods.views.strength import AS_THE_VIEWS, AugmentationConfig

OnError = Literal["raise", "skip"]


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which images, and which views of them."""

    dataset: str = field(default="digits", metadata={"choices": DATASETS})
    """Name of the dataset."""
    root: str | None = incidental(None)
    """Folder or file of the dataset, for shards also s3://BUCKET/PREFIX; digits need none."""
    image_column: str | None = added(None)
    """Column of a table, or suffix of the files in a shard, that holds the images; None finds the only one."""
    label_column: str | None = added(None)
    """The same of their classes; None takes the only column of classes, or the suffix cls."""
    train_split: str | None = added(None)
    """Name of the split to train on in tables and shards; None is train."""
    test_split: str | None = added(None)
    """Name of the split to evaluate on; None is the first there is of validation, val, valid and test."""
    cache_folder: str | None = incidental(None)
    """Folder for the index of shards and for tables made of parquet; None is ~/.cache/sts-methods."""
    image_size: int = 32
    """Side of the views in pixels."""
    views: str = field(default="byol", metadata={"choices": VIEWS} | formerly("recipe"))
    """How images are augmented: as for the method of that name."""
    num_labels: int | None = None
    """Labelled images of semi-supervised views, the same number of each class; None labels all."""
    unlabelled_ratio: int = 7
    """Unlabelled images per labelled one in a batch of semi-supervised views (FixMatch's mu)."""
    num_local_crops: int = 8
    """DINO's small crops per image."""
    crop_scale_min: float | None = None
    """Smallest share of the area that a crop covers; None is that of the views."""
    local_crop_scale_max: float | None = added(None)
    """Largest share of the area that one of DINO's small crops covers; None is that of the views."""
    interpolation: Interpolation | None = None
    """Filter that resizes crops, bilinear or bicubic (DeepMind's BYOL); None is that of the views."""
    augmentation: AugmentationConfig = added(AS_THE_VIEWS)
    """Strengths and probabilities, where they differ from those of the views."""
    mean: tuple[float, float, float] | None = added(None)
    """Mean of red, green and blue, in [0, 1], that images are normalised with; None is the dataset's, ImageNet's for a
    folder or file of your own."""
    std: tuple[float, float, float] | None = added(None)
    """Standard deviation, likewise."""
    num_workers: int = incidental(0)
    """Processes that read image files; images in memory need none."""
    on_error: OnError = incidental("raise")
    """An unreadable image stops the run, or is skipped: counted, reported and replaced by the next readable one; only a
    run that would have stopped has another outcome."""
    device_augmentation: bool | None = None
    """Colour and blur on the training device, batched; None chooses it for GPUs that have fewer than 8 loader
    processes with a core each, and never for a CPU."""

    def __post_init__(self) -> None:
        for name, choices in (("dataset", DATASETS), ("views", VIEWS), ("on_error", get_args(OnError))):
            if (value := getattr(self, name)) not in choices:
                raise ConfigError(f"{name} must be one of {', '.join(choices)}, got {value!r}", fields=(name,))
        layout = ("image_column", "label_column", "train_split", "test_split")
        if (told := [name for name in layout if getattr(self, name)]) and not dataset_record(self.dataset).takes_layout:
            raise ConfigError(
                f"{told[0]} is for tables and shards, {self.dataset} needs none, got {getattr(self, told[0])!r}: "
                f"leave it out",
                fields=(told[0],),
            )
        for name, least in (("image_size", 8), ("unlabelled_ratio", 1), ("num_local_crops", 0), ("num_workers", 0)):
            if (value := getattr(self, name)) < least:
                raise ConfigError(f"{name} must be at least {least}, got {value!r}", fields=(name,))
        mean, std = self.statistics
        if not (len(mean) == len(std) == 3 and all(0 <= m <= 1 for m in mean) and all(0 < s <= 1 for s in std)):
            raise ConfigError(
                f"mean and std must be three numbers each in [0, 1], those of std positive, got {mean} and {std}",
                fields=("mean", "std"),
            )
        for name in ("crop_scale_min", "local_crop_scale_max"):
            if (value := getattr(self, name)) is not None and not 0.0 < value <= 1.0:
                raise ConfigError(f"{name} must be in (0, 1], got {value!r}: it is a share of the area", fields=(name,))
        if self.num_labels is not None and not self.with_labels:
            semi_supervised = " and ".join(name for name, record in VIEWS.items() if record.labelled)
            raise ConfigError(
                f"num_labels is for {semi_supervised}, {self.views} uses no labels, got {self.num_labels!r}: "
                f"leave it out",
                fields=("num_labels",),
            )
        self.make_views()  # which checks the augmentation
        if self.interpolation not in (None, *get_args(Interpolation)):
            raise ConfigError(
                f"interpolation must be bilinear, bicubic or None, got {self.interpolation!r}",
                fields=("interpolation",),
            )
        if self.interpolation is not None and not any(isinstance(view, CropView) for view in self.make_views()):
            raise ConfigError(
                f"interpolation is for views that resize crops, {self.views} shifts whole images, got "
                f"{self.interpolation!r}: leave it out",
                fields=("interpolation",),
            )

    @property
    def statistics(self) -> Statistics:
        """Mean and standard deviation of the channels that images are normalised with."""
        known = dataset_record(self.dataset).statistics
        return (self.mean or known[0], self.std or known[1])

    @property
    def with_labels(self) -> bool:
        """Whether batches hold labelled images too."""
        return VIEWS[self.views].labelled

    def open(self, split: Split) -> Source:
        """The images of one split."""
        layout = Layout(
            image=self.image_column, label=self.label_column, train=self.train_split, test=self.test_split,
            cache=self.cache_folder,
        )  # fmt: skip
        return open_source(self.dataset, self.root, split, image_size=self.image_size, layout=layout)

    def make_views(self) -> Views:
        """The views that this config asks for."""
        subject = DATASETS[self.dataset].subject
        views = VIEWS[self.views].make(subject, image_size=self.image_size, num_local=self.num_local_crops)
        return self.augmentation.applied(tuple(self._as_asked(view) for view in views), self.views)

    def _as_asked(self, view: View) -> View:
        """A view with this config's own crops and filter."""
        if not isinstance(view, CropView):
            return view
        if (low := self.crop_scale_min) is not None and view.size == self.image_size:
            view = replace(view, crop_scale=(low, max(low, view.crop_scale[1])))
        if (high := self.local_crop_scale_max) is not None and view.size != self.image_size:
            view = replace(view, crop_scale=(min(high, view.crop_scale[0]), high))
        return replace(view, interpolation=self.interpolation or view.interpolation)
