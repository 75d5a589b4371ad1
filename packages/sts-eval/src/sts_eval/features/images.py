"""Images for evaluation: class folders, the centre crop of the test, the random crop of the augmented probe."""

import math
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from sts_core import ConfigError
from sts_eval.errors import DataError

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos", "box", "hamming")
CROP_SCALE = (0.08, 1.0)  # MoCo, main_lincls.py: torchvision's defaults
CROP_RATIO = (3.0 / 4.0, 4.0 / 3.0)
CROP_ATTEMPTS = 10
IMAGE_SUFFIXES = frozenset(  # those of sts-methods
    {".jpg", ".jpeg", ".jpe", ".jfif", ".jp2", ".png", ".bmp", ".gif", ".webp", ".avif", ".tif", ".tiff"}
    | {".ppm", ".pgm"}
)


def rgb(image: Any) -> Any:
    """A PIL image with three channels of eight bits; of more bits Pillow would keep the lowest, or clip to white."""
    if image.mode.startswith(("I", "F")):
        raise DataError(f"an image must have 8 bits per channel, got mode {image.mode!r}: convert it")
    return image.convert("RGB")


def read_image(path: str | Path) -> Image.Image:
    """Decode an image file as RGB."""
    try:
        with Image.open(path) as image:
            return rgb(image)  # type: ignore[no-any-return]
    except (DataError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        reason = str(error) if isinstance(error, DataError) else type(error).__name__
        raise DataError(
            f"every image must be readable, {path} is not ({reason}): repair it or copy it again"
        ) from error


def normalised(image: Any, mean: Sequence[float] = IMAGENET_MEAN, std: Sequence[float] = IMAGENET_STD) -> Tensor:
    """A PIL image as a float tensor [3, H, W], less `mean` and divided by `std` (ImageNet's)."""
    pixels = torch.from_numpy(np.array(rgb(image))).permute(2, 0, 1).float()
    shift, scale = (255.0 * torch.tensor(values)[:, None, None] for values in (mean, std))
    return pixels.sub_(shift).div_(scale).contiguous()


def centre_box(size: tuple[int, int], side: int) -> tuple[int, int, int, int]:
    """(left, top, right, bottom) of the central side x side pixels: torchvision's CenterCrop."""
    left, top = (round((length - side) / 2) for length in size)
    return left, top, left + side, top + side


def centre_crop(image: Any, side: int, *, resize: int, interpolation: str = "bilinear") -> Any:
    """The central side x side pixels of a PIL image whose shorter side becomes `resize`: torchvision's to the pixel."""
    width, height = (int(resize * length / min(image.size)) for length in image.size)
    resized = image.resize((width, height), Image.Resampling[interpolation.upper()])
    return resized.crop(centre_box(resized.size, side))


class CentreCrop:
    """The evaluation transform: shorter side to `resize` (`image_size`·256/224), centre crop, normalise.

    `Backbone.transform` gives the one that a timm network was trained for.
    """

    def __init__(
        self,
        image_size: int = 224,
        *,
        resize: int | None = None,
        interpolation: str = "bilinear",
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
    ) -> None:
        self.image_size, self.interpolation = image_size, interpolation
        self.mean, self.std = tuple(mean), tuple(std)
        if interpolation not in INTERPOLATIONS:
            raise ConfigError(f"interpolation must be one of {', '.join(INTERPOLATIONS)}, got {interpolation!r}")
        self.resize = resize if resize is not None else round(image_size * 256 / 224)
        if not 1 <= image_size <= self.resize:
            raise ConfigError(f"resize must be at least image_size={image_size}, got {self.resize}: raise it")

    def __call__(self, image: Any) -> Tensor:
        view = centre_crop(rgb(image), self.image_size, resize=self.resize, interpolation=self.interpolation)
        return normalised(view, self.mean, self.std)

    def __repr__(self) -> str:
        usual = (self.interpolation, self.mean, self.std) == ("bilinear", IMAGENET_MEAN, IMAGENET_STD)
        rest = "" if usual else f", interpolation={self.interpolation!r}, mean={self.mean}, std={self.std}"
        return f"CentreCrop({self.image_size}, resize={self.resize}{rest})"


def is_image(path: str) -> bool:
    """Whether a file is taken for an image, by its ending."""
    return os.path.splitext(path)[1].lower() in IMAGE_SUFFIXES


def folders_in(root: str | Path) -> list[str]:
    """The names of the folders in `root`, sorted; hidden ones, such as .ipynb_checkpoints, are no classes."""
    with os.scandir(root) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


class _ClassFolders(Dataset[Any]):
    """All images below each class folder, at any depth; links are followed. The order is torchvision's.

    With `skip` the next readable image, and its class, stand in for one that cannot be read; each is told once.
    """

    def __init__(self, root: Path, *, transform: Callable[[Any], Any] | None, skip: bool) -> None:
        self.root, self.transform, self.skip = str(root), transform, skip
        self.classes = folders_in(root)
        found = [_images_below(root / name) for name in self.classes]
        lacking = [name for name, files in zip(self.classes, found, strict=True) if not files]
        if lacking or not found:
            reason = f"no image for the class {', '.join(lacking[:3])}" if lacking else "no class folder"
            raise DataError(f"every class folder must hold images, but {root} has {reason}: fill or remove it")
        self.samples = [(file, label) for label, files in enumerate(found) for file in files]
        self.targets = [label for _, label in self.samples]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        for turn in range(len(self) if self.skip else 1):
            file, label = self.samples[(index + turn) % len(self)]
            try:
                image = read_image(file)
            except DataError as error:
                if not self.skip:
                    raise
                warnings.warn(f"skipped an image: {error}", UserWarning, stacklevel=2)
            else:
                return image if self.transform is None else self.transform(image), label
        raise DataError(f"some image must be readable, none of the {len(self)} under {self.root} is: repair them")


def _images_below(folder: Path) -> list[str]:
    walked = sorted(os.walk(folder, followlinks=True))
    return [os.path.join(base, name) for base, _, names in walked for name in sorted(names) if is_image(name)]


def image_folder(
    root: str | Path,
    *,
    image_size: int | None = 224,
    resize: int | None = None,
    transform: Callable[[Any], Any] | None = None,
    skip_unreadable: bool = False,
) -> Any:
    """The images under `root/<class>/`, centre-cropped, or as they are with `image_size=None` (augmented probe).

    With `skip_unreadable` the next readable image stands in for one that cannot be read, and a warning names it.

    `transform`, for instance `load_source("vit_small_patch16_224").transform()`, takes the place of the centre crop.
    """
    if not Path(root).is_dir():
        raise DataError(f"an image folder must exist with one folder per class, but {root} does not: check the path")
    if transform is None and image_size is not None:
        transform = CentreCrop(image_size, resize=resize)
    return _ClassFolders(Path(root), transform=transform, skip=skip_unreadable)


def random_crop_box(height: int, width: int, draws: np.random.Generator) -> tuple[int, int, int, int]:
    """(top, left, height, width) of a random crop with area in CROP_SCALE of the image and ratio in CROP_RATIO.

    Area uniform, logarithm of the ratio uniform; the largest centred box of allowed ratio after ten misses.
    """
    for _ in range(CROP_ATTEMPTS):
        area = height * width * draws.uniform(*CROP_SCALE)
        ratio = math.exp(draws.uniform(math.log(CROP_RATIO[0]), math.log(CROP_RATIO[1])))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return int(draws.integers(height - h + 1)), int(draws.integers(width - w + 1)), h, w
    ratio = min(max(width / height, CROP_RATIO[0]), CROP_RATIO[1])
    w, h = min(width, round(height * ratio)), min(height, round(width / ratio))
    return (height - h) // 2, (width - w) // 2, h, w


class AugmentedSamples(Dataset[Any]):
    """Random resized crop and flip of a dataset of PIL images or normalised tensors.

    What a sample looks like is a function of (seed, epoch, index) only, whatever process or worker asks for it.
    """

    def __init__(self, dataset: Any, *, test_view: CentreCrop, seed: int, epoch: int) -> None:
        self.dataset, self.seed, self.epoch = dataset, seed, epoch
        self.test_view, self.image_size = test_view, test_view.image_size

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, label = self.dataset[index]
        key = np.array([self.seed, (self.epoch << 32) + index], dtype=np.uint64)
        draws = np.random.Generator(np.random.Philox(key=key))
        view = self._crop_tensor(image, draws) if isinstance(image, Tensor) else self._crop_image(image, draws)
        return (view.flip(-1) if draws.random() < 0.5 else view), int(label)

    def _crop_tensor(self, image: Tensor, draws: np.random.Generator) -> Tensor:
        top, left, height, width = random_crop_box(image.shape[-2], image.shape[-1], draws)
        crop = image[None, :, top : top + height, left : left + width]
        return F.interpolate(crop, (self.image_size,) * 2, mode="bilinear", antialias=True, align_corners=False)[0]

    def _crop_image(self, image: Any, draws: np.random.Generator) -> Tensor:
        top, left, height, width = random_crop_box(image.height, image.width, draws)
        crop, view = rgb(image.crop((left, top, left + width, top + height))), self.test_view
        resized = crop.resize((self.image_size,) * 2, Image.Resampling[view.interpolation.upper()])
        return normalised(resized, view.mean, view.std)
