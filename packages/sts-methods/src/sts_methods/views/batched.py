"""Views of a whole batch at once, on any device: every image with its own parameters."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sts_methods.draws import BoolArray, FloatArray, IntArray, Keys, uniforms
from sts_methods.views.blur import blur, half_width
from sts_methods.views.colour import JitterDraws, grayscale_, jitter_, rows_of, solarise_
from sts_methods.views.geometry import CROP_DRAWS, crop_resize, draw_crops, rotate, shift_flip
from sts_methods.views.randaugment import num_draws, strengthen_
from sts_methods.views.specs import CropView, StrongView, View, WeakView

GRAY = 127  # fill of erased squares (kekmodel, dataset/randaugment.py)
_EXTRA_DRAWS = 15
WEAK_DRAWS = 3


@dataclass(frozen=True)
class CropDraws:
    """The parameters of one CropView for each image of a batch, all [N, ...], on the host."""

    boxes: IntArray
    flip: BoolArray
    jitter: JitterDraws
    grayscale: BoolArray
    sigma: FloatArray
    """Standard deviation of the blur, 0 where there is none."""
    solarise: BoolArray
    rotation: FloatArray
    erase: BoolArray
    corner: FloatArray
    """Where the erased square lies, [N, 2] in [0, 1)."""


def draw_crop_view(
    view: CropView, keys: Keys, *, seed: int, stream: int, heights: IntArray, widths: IntArray
) -> CropDraws:
    """The parameters of `view` as a function of (seed, stream, epoch, index)."""
    u = uniforms(seed=seed, stream=stream, epochs=keys.epochs, indices=keys.indices, num=CROP_DRAWS + _EXTRA_DRAWS)
    boxes = draw_crops(u[:, :CROP_DRAWS], heights=heights, widths=widths, scale=view.crop_scale, ratio=view.crop_ratio)
    u = u[:, CROP_DRAWS:]
    reach = np.array([view.brightness, view.contrast, view.saturation, view.hue])
    factors = np.array([1.0, 1.0, 1.0, 0.0]) + (2.0 * u[:, 3:7] - 1.0) * reach
    active = tuple(np.flatnonzero(reach).tolist())
    low, high = view.blur_sigma
    return CropDraws(
        boxes=boxes,
        flip=u[:, 0] < view.flip,
        jitter=JitterDraws(u[:, 1] < view.jitter, (u[:, 2] * 24).astype(np.int64), factors, active),
        grayscale=u[:, 7] < view.grayscale,
        sigma=np.where(u[:, 8] < view.blur, low + (high - low) * u[:, 9], 0.0),
        solarise=u[:, 10] < view.solarise,
        rotation=(2.0 * u[:, 11] - 1.0) * view.rotation,
        erase=u[:, 12] < view.erase,
        corner=u[:, 13:15],
    )


def augment_batch(images: Tensor, view: View, keys: Keys, *, seed: int, stream: int) -> Tensor:
    """One view of each image of a uint8 batch [N, 3, H, W], as whole numbers 0..255 (uint8 or float32)."""
    if isinstance(view, CropView):
        x, draws = crop_batch(images, view, keys, seed=seed, stream=stream)
        return finish_crops_(x, view, draws)
    num = WEAK_DRAWS + (num_draws(view) if isinstance(view, StrongView) else 0)
    u = uniforms(seed=seed, stream=stream, epochs=keys.epochs, indices=keys.indices, num=num)
    x = weaken(images.permute(0, 2, 3, 1), view, u)
    if isinstance(view, StrongView):
        strengthen_(x, view, u[:, WEAK_DRAWS:])
    return x.permute(0, 3, 1, 2)


def crop_batch(images: Tensor, view: CropView, keys: Keys, *, seed: int, stream: int) -> tuple[Tensor, CropDraws]:
    """The crop of each image [N, 3, H, W], turned and mirrored as drawn, and all draws of the view."""
    heights, widths = (np.full(len(keys), side, dtype=np.int64) for side in images.shape[-2:])
    draws = draw_crop_view(view, keys, seed=seed, stream=stream, heights=heights, widths=widths)
    x = rotate(images, draws.rotation) if view.rotation else images
    return crop_resize(x, draws.boxes, draws.flip, size=view.size, interpolation=view.interpolation), draws


def finish_crops_(x: Tensor, view: CropView, draws: CropDraws) -> Tensor:
    """Everything after the crop, batched: colour jitter, grayscale, blur, solarise, erase."""
    jitter_(x, draws.jitter)
    grayscale_(x, draws.grayscale)
    if (blurred := draws.sigma > 0).any():
        rows = rows_of(blurred, x.device)
        half = half_width(view.blur_sigma[1])
        x.index_copy_(0, rows, blur(x.index_select(0, rows), draws.sigma[blurred], half=half))
    solarise_(x, draws.solarise)
    if draws.erase.any():
        erase_(x, draws.erase, draws.corner, side=view.size // 4)
    return x


def weaken(images: Tensor, view: WeakView, u: FloatArray) -> Tensor:
    """Flip and shift images [N, H, W, 3]."""
    padding = round(view.padding * images.shape[1])
    shifts = (u[:, 1:3] * (2 * padding + 1)).astype(np.int64)
    return shift_flip(images, shifts, u[:, 0] < view.flip, padding=padding)


def erase_(x: Tensor, mask: BoolArray, corner: FloatArray, *, side: int) -> Tensor:
    """Paint a gray square of `side` pixels into the chosen images, in place."""
    top_left = torch.from_numpy((corner * (x.shape[-1] - side + 1)).astype(np.int64)).to(x.device)
    position = torch.arange(x.shape[-1], device=x.device)
    inside = (position >= top_left[:, :, None]) & (position < top_left[:, :, None] + side)
    inside &= torch.from_numpy(mask).to(x.device)[:, None, None]
    return x.masked_fill_((inside[:, 0, :, None] & inside[:, 1, None, :])[:, None], GRAY)
