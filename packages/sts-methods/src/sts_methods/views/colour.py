"""Colour jitter, grayscale and solarisation of a batch on any device, with Pillow's arithmetic.

Images are float tensors [N, 3, H, W] that hold whole numbers 0..255: like Pillow, every step cuts its result to a whole
number, so that chains of steps do not drift from the references.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import torch
from torch import Tensor

from sts_methods.draws import BoolArray, FloatArray, IntArray

# Row k is the k-th order in which (0 brightness, 1 contrast, 2 saturation, 3 hue) can follow one another.
ORDERS = np.array(list(permutations(range(4))), dtype=np.int64)


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


def brightness(x: Tensor, factor: Tensor) -> Tensor:
    """x·f."""
    return (x * factor).clamp_(0, 255).floor_()


def contrast(x: Tensor, factor: Tensor) -> Tensor:
    """μ + f·(x − μ) with μ the rounded mean luma of the image."""
    mean = luma(x).mean(dim=(2, 3), keepdim=True).add_(0.5).floor_()
    return torch.addcmul(mean * (1 - factor), x, factor).clamp_(0, 255).floor_()


def saturation(x: Tensor, factor: Tensor) -> Tensor:
    """L + f·(x − L)."""
    return torch.addcmul(luma(x) * (1 - factor), x, factor).clamp_(0, 255).floor_()


def hue(x: Tensor, shift: Tensor) -> Tensor:
    """Turn the colour circle by `shift` (1 is a full turn) at the same value and saturation.

    With v = max, d = max − min and hue h in sixths, channel n = 5, 3, 1 becomes v − d·clip(min(k, 4 − k), 0, 1) where
    k = (n + h) mod 6. Hue is cut to 256 steps before the turn, as Pillow's HSV mode does, and turns by whole steps.
    """
    red, green, blue = x.unbind(dim=1)
    value, low = x.amax(dim=1), x.amin(dim=1)
    chroma = value - low
    safe = chroma.clamp(min=1.0)
    sixths = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2.0 + (blue - red) / safe, 4.0 + (red - green) / safe),
    )
    # Remainders by comparison: `remainder` costs as much as all the rest.
    steps = sixths.mul_(255 / 6).floor_()
    steps = steps.add_((shift[:, :, 0] * 255.0).trunc_()).add_((sixths < 0) * 255.0)
    steps = torch.where(steps < 0, steps + 256.0, torch.where(steps >= 256.0, steps - 256.0, steps))
    turned = steps.mul_(6 / 255)
    made = torch.empty_like(x)
    for channel, offset in enumerate((5.0, 3.0, 1.0)):
        k = turned + offset
        k = torch.where(k >= 6.0, k - 6.0, k)
        drop = torch.minimum(k, 4.0 - k).clamp_(0, 1)
        torch.addcmul(value, drop, chroma, value=-1, out=made[:, channel])
    return made.add_(0.5).floor_()


STEPS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (brightness, contrast, saturation, hue)


def jitter_(x: Tensor, draws: JitterDraws) -> Tensor:
    """Apply the four colour steps in each image's own order, in place, to the images that have the jitter.

    In each of the four places the images are grouped by the step that they take there; the groups are known on the
    host, so that nothing waits for the device.
    """
    factors = torch.from_numpy(draws.factors).to(x.device, torch.float32)
    order = ORDERS[draws.order]
    for place in range(4):
        for step in draws.active:
            rows = np.flatnonzero(draws.applied & (order[:, place] == step))
            if len(rows):
                chosen = torch.from_numpy(rows).to(x.device)
                factor = factors[chosen, step, None, None, None]
                x.index_copy_(0, chosen, STEPS[step](x.index_select(0, chosen), factor))
    return x


def rows_of(mask: BoolArray, device: torch.device) -> Tensor:
    """The rows where `mask` holds, as an index on the device."""
    return torch.from_numpy(np.flatnonzero(mask)).to(device)


def grayscale_(x: Tensor, mask: BoolArray) -> Tensor:
    """Replace the chosen images by their luma, in place."""
    if mask.any():
        rows = rows_of(mask, x.device)
        x.index_copy_(0, rows, luma(x.index_select(0, rows)).expand(-1, 3, -1, -1))
    return x


def solarise_(x: Tensor, mask: BoolArray) -> Tensor:
    """Invert the values from 128 up in the chosen images, in place."""
    if mask.any():
        rows = rows_of(mask, x.device)
        chosen = x.index_select(0, rows)
        x.index_copy_(0, rows, torch.where(chosen >= 128, 255 - chosen, chosen))
    return x
