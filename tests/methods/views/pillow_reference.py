"""The references' augmentations with fixed parameters, by Pillow and torchvision, and pictures to try them on."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageFilter
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F

Array = npt.NDArray[Any]


def photograph(number: int, *, height: int = 96, width: int = 128) -> Array:
    """A picture with the statistics of a photograph: smooth coloured shapes, edges and a little grain; uint8 RGB."""
    rng = np.random.default_rng(number)
    coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
    picture = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), dtype=np.float64)
    picture = 0.4 * picture + 0.6 * picture.mean(axis=2, keepdims=True)  # photographs are far less colourful than noise
    for _ in range(6):
        top, left = rng.integers(0, height - 8), rng.integers(0, width - 8)
        picture[top : top + rng.integers(4, 40), left : left + rng.integers(4, 40)] = rng.integers(
            60, 200
        ) + rng.integers(-50, 50, 3)
    grainy: Array = np.clip(picture + rng.normal(0, 4, picture.shape), 0, 255).astype(np.uint8)
    return grainy


def photographs(num: int, *, height: int = 96, width: int = 128) -> Tensor:
    """uint8 [N, 3, H, W] in channels_last order."""
    stack = np.stack([photograph(k, height=height, width=width) for k in range(num)])
    return torch.from_numpy(stack).permute(0, 3, 1, 2)


def pillow(image: Tensor | Array) -> Image.Image:
    """A uint8 picture [3, H, W] (tensor) or [H, W, 3] (array) as Pillow's."""
    if isinstance(image, Tensor):
        image = image.to(torch.uint8).permute(1, 2, 0).contiguous().numpy()
    return Image.fromarray(image)


def pixels(image: Image.Image) -> Array:
    return np.asarray(image).astype(np.int64)


def as_pixels(image: Tensor | Array) -> Array:
    """[H, W, 3] whole numbers of one of our results."""
    if isinstance(image, Tensor):
        return image.permute(1, 2, 0).numpy().astype(np.int64)
    return image.astype(np.int64)


def crop_resize(image: Image.Image, box: Array, size: int, interpolation: str) -> Image.Image:
    top, left, height, width = (int(v) for v in box)
    mode = InterpolationMode.BILINEAR if interpolation == "bilinear" else InterpolationMode.BICUBIC
    made: Image.Image = F.resized_crop(image, top, left, height, width, [size, size], mode)
    return made


JITTER = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)


def jitter(image: Image.Image, order: Array, factors: Array) -> Image.Image:
    for step in order:
        image = JITTER[step](image, float(factors[step]))
    return image


def blur(image: Image.Image, sigma: float) -> Image.Image:
    return image.filter(ImageFilter.GaussianBlur(radius=sigma))
