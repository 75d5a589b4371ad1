"""Colour jitter, grayscale and solarisation of a batch on any device, with Pillow's arithmetic or TensorFlow's jitter.

Images are float tensors [N, 3, H, W] that hold whole numbers 0..255: like Pillow, every step cuts its result to a whole
number, so that chains of steps do not drift from the references. TensorFlow's jitter is rounded at its end, once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations

import numpy as np
import torch
from torch import Tensor

from sts_methods.draws import BoolArray, FloatArray, IntArray
from sts_methods.views.specs import Colours

# Row k is the k-th order in which (0 brightness, 1 contrast, 2 saturation, 3 hue) can follow one another.
ORDERS = np.array(list(permutations(range(4))), dtype=np.int64)
CONTRAST, SATURATION, HUE = 1, 2, 3
_TINY = 1e-6  # a gray pixel has no hue to divide by


Tone = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Hue = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class JitterDraws:
    """What one view's colour jitter does to each image, all [N]."""

    applied: BoolArray
    order: IntArray
    """Row of ORDERS."""
    factors: FloatArray
    """[N, 4]: factors of brightness, contrast and saturation, and the hue shift."""
    active: tuple[int, ...] = (0, 1, 2, 3)
    """The steps that do anything; digits have no colour to change."""


def luma(x: Tensor) -> Tensor:
    """L = round(.299 R + .587 G + .114 B), Pillow's integer coefficients over 65536, as [N, 1, H, W]."""
    red, green, blue = x.unbind(dim=1)
    gray = (red * (19595 / 65536)).add_(green, alpha=38470 / 65536).add_(blue, alpha=7471 / 65536)
    return gray.add_(0.5).floor_().unsqueeze(1)


def tone(x: Tensor, factor: Tensor, of_luma: Tensor, of_mean: Tensor) -> Tensor:
    """f·x + (1 − f)·base: brightness with base 0, saturation with the luma L, contrast with its rounded mean μ.

    `of_luma` and `of_mean` are 1 − f where that is the base, else 0.
    """
    gray = luma(x)
    mean = gray.mean(dim=(2, 3), keepdim=True).add_(0.5).floor_()
    base = gray.mul_(of_luma).addcmul_(mean, of_mean)
    return torch.addcmul(base, x, factor).clamp_(0, 255).floor_()


def tensorflow_tone(x: Tensor, factor: Tensor, of_value: Tensor, of_mean: Tensor) -> Tensor:
    """x + 255·(f − 1) for brightness, μ + f·(x − μ) for contrast, v + min(f, v/d)·(x − v) for saturation.

    μ is the mean of each channel, v = max and d = max − min of the pixel: in HSV the saturation d/v becomes f·d/v, at
    most 1, at the same hue and value. `of_value` and `of_mean` are 1 − f where the step is saturation or contrast, else
    0. (deepmind-research byol/utils/augmentations.py)
    """
    saturates, contrasts = of_value != 0, of_mean != 0
    value, chroma = _value_and_chroma(x)
    strength = torch.where(saturates, torch.minimum(factor, value / chroma.clamp(min=_TINY)), factor)
    centre = torch.where(saturates, value, x.mean(dim=(2, 3), keepdim=True))
    scaled = centre + strength * (x - centre)
    return torch.where(saturates | contrasts, scaled, x + 255 * (factor - 1)).clamp_(0, 255)


def hue(x: Tensor, shift: Tensor) -> Tensor:
    """Turn the colour circle by `shift` (1 is a full turn) at the same value and saturation, as Pillow.

    Hue is cut to 256 steps before the turn, as Pillow's HSV mode does, and turns by whole steps.
    """
    value, chroma = _value_and_chroma(x)
    sixths = _sixths(x, value, chroma)
    # Remainders by comparison: `remainder` costs as much as all the rest.
    steps = sixths.mul_(255 / 6).floor_()
    steps = steps.add_((shift * 255.0).trunc_()).add_((sixths < 0) * 255.0)
    steps = torch.where(steps < 0, steps + 256.0, torch.where(steps >= 256.0, steps - 256.0, steps))
    return _coloured(value, chroma, steps.mul_(6 / 255)).add_(0.5).floor_()


def tensorflow_hue(x: Tensor, shift: Tensor) -> Tensor:
    """Turn the colour circle by `shift` (1 is a full turn) at the same value and saturation."""
    value, chroma = _value_and_chroma(x)
    turned = _sixths(x, value, chroma).add_(6.0 * shift)
    turned = torch.where(turned < 0, turned + 6.0, torch.where(turned >= 6.0, turned - 6.0, turned))
    return _coloured(value, chroma, turned).clamp_(0, 255)


def _value_and_chroma(x: Tensor) -> tuple[Tensor, Tensor]:
    """max and max − min of each pixel, [N, 1, H, W]."""
    value = x.amax(dim=1, keepdim=True)
    return value, value - x.amin(dim=1, keepdim=True)


def _sixths(x: Tensor, value: Tensor, chroma: Tensor) -> Tensor:
    """The hue in sixths of the circle, in [-1, 5]."""
    red, green, blue = x.unsqueeze(2).unbind(dim=1)
    safe = chroma.clamp(min=_TINY)
    return torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2.0 + (blue - red) / safe, 4.0 + (red - green) / safe),
    )


def _coloured(value: Tensor, chroma: Tensor, sixths: Tensor) -> Tensor:
    """Channel n = 5, 3, 1 of a hue h in sixths is v − d·clip(min(k, 4 − k), 0, 1), k = (n + h) mod 6."""
    k = sixths + _offsets(value.device)
    k = torch.where(k >= 6.0, k - 6.0, k)
    drop = torch.minimum(k, 4.0 - k).clamp_(0, 1)
    return torch.addcmul(value, drop, chroma, value=-1)


@lru_cache(maxsize=8)
def _offsets(device: torch.device) -> Tensor:
    """n of each channel."""
    return torch.tensor([5.0, 3.0, 1.0], device=device)[:, None, None]


@dataclass(frozen=True)
class ToneStep:
    """Brightness, contrast or saturation for some images of a batch: the arguments of `tone`, all [n, 1, 1, 1]."""

    rows: Tensor
    """Which images, [n]."""
    factor: Tensor
    of_luma: Tensor
    of_mean: Tensor


@dataclass(frozen=True)
class JitterPlan:
    """A batch's colour jitter step by step: a chain tone, hue, tone holds every order of the four."""

    before: tuple[ToneStep, ...]
    hue_rows: Tensor
    shift: Tensor
    after: tuple[ToneStep, ...]


def plan_jitter(draws: JitterDraws) -> JitterPlan:
    """Group the images by place: the k-th tone step before their hue, the hue, the k-th one after it."""
    takes = draws.applied[:, None] & np.isin(np.arange(4), draws.active)
    order = ORDERS[draws.order]
    taken = np.take_along_axis(takes, order, 1) & (order != HUE)
    past_hue = np.cumsum(order == HUE, axis=1) > 0
    hue_rows = np.flatnonzero(takes[:, HUE])
    before, after = (
        tuple(_tone_step(draws.factors, order, part, place) for place in range(part.sum(axis=1).max(initial=0)))
        for part in (taken & ~past_hue, taken & past_hue)
    )
    return JitterPlan(before, torch.from_numpy(hue_rows), _column(draws.factors[hue_rows, HUE]), after)


def _tone_step(factors: FloatArray, order: IntArray, part: BoolArray, place: int) -> ToneStep:
    """The `place`-th of the steps in `part` [N, 4], of each image that has so many."""
    rows, at = np.nonzero(part & (np.cumsum(part, axis=1) == place + 1))
    step = order[rows, at]
    factor = _column(factors[rows, step])
    of_luma, of_mean = ((1 - factor) * _column(step == kind) for kind in (SATURATION, CONTRAST))
    return ToneStep(torch.from_numpy(rows), factor, of_luma, of_mean)


def _column(values: FloatArray | BoolArray) -> Tensor:
    """One value per image, ready to combine with a batch."""
    return torch.from_numpy(values)[:, None, None, None].to(torch.float32)


_TONES: dict[Colours, Tone] = {"pillow": tone, "tensorflow": tensorflow_tone}
_HUES: dict[Colours, Hue] = {"pillow": hue, "tensorflow": tensorflow_hue}


def jitter_(x: Tensor, plan: JitterPlan, colours: Colours = "pillow") -> Tensor:
    """Apply the four colour steps in each image's own order, in place, to the images that have the jitter."""
    for step in plan.before:
        _tone_(x, step, _TONES[colours])
    if len(plan.hue_rows):
        x.index_copy_(0, plan.hue_rows, _HUES[colours](x.index_select(0, plan.hue_rows), plan.shift))
    for step in plan.after:
        _tone_(x, step, _TONES[colours])
    return x if colours == "pillow" else x.round_()


def _tone_(x: Tensor, step: ToneStep, made_by: Tone) -> None:
    chosen = x.index_select(0, step.rows)
    x.index_copy_(0, step.rows, made_by(chosen, step.factor, step.of_luma, step.of_mean))


def rows_of(mask: BoolArray) -> Tensor:
    """The rows where `mask` holds."""
    return torch.from_numpy(np.flatnonzero(mask))


def grayscale_(x: Tensor, rows: Tensor) -> Tensor:
    """Replace the chosen images by their luma, in place."""
    if len(rows):
        x.index_copy_(0, rows, luma(x.index_select(0, rows)).expand(-1, 3, -1, -1))
    return x


def solarise_(x: Tensor, rows: Tensor) -> Tensor:
    """Invert the values from 128 up in the chosen images, in place."""
    if len(rows):
        chosen = x.index_select(0, rows)
        x.index_copy_(0, rows, torch.where(chosen >= 128, 255 - chosen, chosen))
    return x
