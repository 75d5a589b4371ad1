"""Which images, and which views of them."""

from dataclasses import dataclass, replace
from typing import Literal, get_args

from sts_core.errors import ConfigError
from sts_methods.data.datasets import DatasetName
from sts_methods.views.specs import (
    CropView,
    Interpolation,
    View,
    Views,
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
    interpolation: Interpolation | None = None
    """Filter that resizes crops, bilinear or bicubic (DeepMind's BYOL); None is the recipe's own."""
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
        if self.num_labels is not None and self.recipe not in SEMI_SUPERVISED:
            raise ConfigError(
                f"num_labels is for {' and '.join(SEMI_SUPERVISED)}, {self.recipe} uses no labels, got "
                f"{self.num_labels!r}: leave it out"
            )
        if self.interpolation not in (None, *get_args(Interpolation)):
            raise ConfigError(
                f"interpolation must be bilinear, bicubic or None, got {self.interpolation!r}: choose one of these"
            )
        if self.interpolation is not None and self.recipe in SEMI_SUPERVISED:
            raise ConfigError(
                f"interpolation is for recipes that resize crops, {self.recipe} shifts whole images, got "
                f"{self.interpolation!r}: leave it out"
            )

    def views(self) -> Views:
        """The views that this config asks for."""
        return tuple(self._as_asked(view) for view in _recipe_views(self))

    def _as_asked(self, view: View) -> View:
        """The recipe's view with this config's own crops and filter."""
        if not isinstance(view, CropView):
            return view
        if (low := self.crop_scale_min) is not None and view.size == self.image_size:
            view = replace(view, crop_scale=(low, max(low, view.crop_scale[1])))
        return replace(view, interpolation=self.interpolation or view.interpolation)


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
