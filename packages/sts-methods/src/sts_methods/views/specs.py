"""What the views of each method are, as values. How they are computed: `batched` and `per_image`.

`VIEWS` holds all of them by name, for photographs and for digits. The order of operations is crop, flip, colour jitter,
grayscale, blur, solarise, erase; the references place the flip last and BYOL the blur before the grayscale, which gives
the same images: a flip commutes with everything here, and grayscale with a blur (both are linear, up to rounding).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from sts_core import ConfigError

Interpolation = Literal["bilinear", "bicubic"]
Colours = Literal["pillow", "tensorflow"]
Subject = Literal["photographs", "digits"]
TwoViews = Literal["moco", "byol", "byol_deepmind"]
Range = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class CropView:
    """A random resized crop with colour changes: of MoCo v2, BYOL and DINO. Defaults: MoCo v2, main_moco.py."""

    size: int
    """Side of the view in pixels."""
    crop_scale: Range = (0.2, 1.0)
    """Share of the image's area that the crop covers."""
    crop_ratio: Range = (3 / 4, 4 / 3)
    """Width over height of the crop."""
    interpolation: Interpolation = "bilinear"
    """Filter of the (antialiased) resize."""
    flip: float = 0.5
    """Probability of a horizontal flip."""
    jitter: float = 0.8
    """Probability of the colour jitter; its four steps come in random order."""
    colours: Colours = "pillow"
    """Whose jitter: Pillow's, or TensorFlow's as in DeepMind's BYOL, which adds to the brightness (± its share of
    white), takes contrast about the mean of each channel and saturation in HSV."""
    brightness: float = 0.4
    """Brightness factor is uniform in 1 ± this."""
    contrast: float = 0.4
    """Contrast factor is uniform in 1 ± this."""
    saturation: float = 0.4
    """Saturation factor is uniform in 1 ± this."""
    hue: float = 0.1
    """Hue shift is uniform in ± this, as a share of the colour circle."""
    grayscale: float = 0.2
    """Probability of dropping the colour."""
    blur: float = 0.5
    """Probability of a Gaussian blur."""
    blur_sigma: Range = (0.1, 2.0)
    """Its standard deviation in pixels."""
    solarise: float = 0.0
    """Probability of inverting the values from 128 up."""
    rotation: float = 0.0
    """Angle is uniform in ± this many degrees."""
    erase: float = 0.0
    """Probability of a gray square of a quarter of the side."""


@dataclass(frozen=True, kw_only=True)
class WeakView:
    """A flip and a small shift: FixMatch's weak view (kekmodel, dataset/cifar.py)."""

    size: int
    """Side of the view in pixels."""
    flip: float = 0.5
    """Probability of a horizontal flip."""
    padding: float = 0.125
    """Largest shift as a share of the side; the border is reflected. 4 of 32 pixels in the reference."""


@dataclass(frozen=True, kw_only=True)
class StrongView(WeakView):
    """The weak view, then RandAugment and Cutout: FixMatch's strong view (kekmodel, dataset/randaugment.py)."""

    num_ops: int = 2
    """Operations drawn from the pool of 14, with replacement."""
    op_probability: float = 0.5
    """Probability that a drawn operation is applied."""
    cutout: float = 0.5
    """Side of the gray square as a share of the view's: 16 of 32 pixels in the reference."""


View = CropView | WeakView | StrongView
Views = tuple[View, ...]


def two_views(
    *, views: TwoViews = "moco", image_size: int = 224, recipe: TwoViews | None = None
) -> tuple[CropView, CropView]:
    """The two views of MoCo v2 (equal) or BYOL (the second is blurred rarely and solarised sometimes).

    "byol" has the colour jitter of torchvision, as the paper's code, "byol_deepmind" that of BYOL's authors.
    `recipe` is the former name of `views`.
    """
    views = recipe or views
    if views == "moco":
        view = CropView(size=image_size)
        return view, view
    if views not in ("byol", "byol_deepmind"):
        raise ConfigError(f"two_views knows the views moco, byol and byol_deepmind, got {views!r}")
    # BYOL, appendix B and deepmind-research byol/utils/augmentations.py.
    colours = "tensorflow" if views == "byol_deepmind" else "pillow"
    shared = {"crop_scale": (0.08, 1.0), "saturation": 0.2, "colours": colours}
    one = CropView(size=image_size, blur=1.0, **shared)  # type: ignore[arg-type]
    two = CropView(size=image_size, blur=0.1, solarise=0.2, **shared)  # type: ignore[arg-type]
    return one, two


def weak_and_strong(*, image_size: int = 32) -> tuple[WeakView, StrongView]:
    """FixMatch's weak and strong view."""
    return WeakView(size=image_size), StrongView(size=image_size)


def two_weak_views(*, image_size: int = 32) -> tuple[WeakView, WeakView]:
    """Mean Teacher: student and teacher each see a weak view of their own."""
    view = WeakView(size=image_size)
    return view, view


def multi_crop(
    *, image_size: int = 224, num_local: int = 8, global_scale: Range = (0.4, 1.0), local_scale: Range = (0.05, 0.4)
) -> tuple[CropView, ...]:
    """DINO: two global crops and `num_local` small ones of 96/224 of the side (facebookresearch/dino, main_dino.py)."""
    shared = {"saturation": 0.2, "interpolation": "bicubic"}
    one = CropView(size=image_size, crop_scale=global_scale, blur=1.0, **shared)  # type: ignore[arg-type]
    two = CropView(size=image_size, crop_scale=global_scale, blur=0.1, solarise=0.2, **shared)  # type: ignore[arg-type]
    local = CropView(size=local_size(image_size), crop_scale=local_scale, **shared)  # type: ignore[arg-type]
    return (one, two, *[local] * num_local)


def local_size(image_size: int) -> int:
    """Side of DINO's local crops: 96 of 224, in whole patches of 16 pixels from images of 64 up, of 8 below."""
    patch = 16 if image_size >= 64 else 8
    return max(1, round(image_size * 96 / 224 / patch)) * patch


def digit_crop(image_size: int) -> CropView:
    """A crop of digits: no flips (a mirrored 2 is no 2), no colour (there is none), small turns and shifts instead.

    A crop below half of a digit's area often leaves nothing of it to recognise, so crops are larger than on photos.
    Measured with BYOL (timm's test_resnet, 12 px, 99 steps, mean of two seeds; probe of the teacher with 10 labels a
    class, untrained 79.4 %): as here 88.7, crops from .3 / .7 of the area 86.0 / 87.5, turns up to 25° 88.0, without
    the erased square 86.5, without brightness and contrast 84.8.
    """
    return CropView(
        size=image_size, crop_scale=(0.5, 1.0), flip=0.0, saturation=0.0, hue=0.0, grayscale=0.0, rotation=15.0,
        blur_sigma=(0.1, image_size / 32), erase=0.5,
    )  # fmt: skip


def _digit_multi_crop(image_size: int, num_local: int) -> Views:
    crop = digit_crop(image_size)
    local = replace(crop, size=local_size(image_size), crop_scale=(0.2, 0.5))
    return (crop, crop, *[local] * num_local)


MakeViews = Callable[[int, int], Views]


@dataclass(frozen=True, kw_only=True)
class ViewsRecord:
    """Views by name: how images are augmented for the methods that train on them."""

    name: str
    """What users write in `data.views`."""
    photographs: MakeViews
    """The views of photographs, from (image size, number of local crops)."""
    digits: MakeViews | None = None
    """The views of digits; None takes those of photographs."""
    labelled: bool = False
    """Whether batches also hold labelled images, augmented as in the first view."""
    num_labelled_views: int = 1
    """How many of the views there are of labelled images: 2 where the teacher sees them too."""

    def __str__(self) -> str:
        return self.name

    def make(self, subject: Subject, *, image_size: int, num_local: int) -> Views:
        """The views of one image."""
        make = self.photographs if subject == "photographs" or self.digits is None else self.digits
        return make(image_size, num_local)


VIEWS: dict[str, ViewsRecord] = {}
"""All views by name."""


def register_views(record: ViewsRecord) -> None:
    """Make views known by their name; every process that meets it has to import the module that calls this."""
    if VIEWS.get(record.name, record) != record:
        raise ConfigError(f"all views need a name of their own, got {record.name!r} a second time")
    VIEWS[record.name] = record


for _record in (
    ViewsRecord(
        name="byol",
        photographs=lambda size, _: two_views(views="byol", image_size=size),
        digits=lambda size, _: (digit_crop(size),) * 2,
    ),
    ViewsRecord(
        name="byol_deepmind",
        photographs=lambda size, _: two_views(views="byol_deepmind", image_size=size),
        digits=lambda size, _: (replace(digit_crop(size), colours="tensorflow"),) * 2,
    ),
    ViewsRecord(
        name="moco",
        photographs=lambda size, _: two_views(views="moco", image_size=size),
        digits=lambda size, _: (digit_crop(size),) * 2,
    ),
    ViewsRecord(
        name="fixmatch",
        photographs=lambda size, _: weak_and_strong(image_size=size),
        digits=lambda size, _: (WeakView(size=size, flip=0.0), StrongView(size=size, flip=0.0, cutout=0.25)),
        labelled=True,
    ),
    ViewsRecord(
        name="mean_teacher",
        photographs=lambda size, _: two_weak_views(image_size=size),
        digits=lambda size, _: (WeakView(size=size, flip=0.0),) * 2,
        labelled=True,
        num_labelled_views=2,
    ),
    ViewsRecord(
        name="dino",
        photographs=lambda size, num_local: multi_crop(image_size=size, num_local=num_local),
        digits=_digit_multi_crop,
    ),
):
    register_views(_record)
