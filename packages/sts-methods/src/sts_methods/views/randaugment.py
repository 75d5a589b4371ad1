"""FixMatch's strong augmentation: RandAugment from a pool of 14 operations, then Cutout.

Values as in kekmodel/FixMatch-pytorch, dataset/randaugment.py (040be3b): two operations are drawn for an image, each is
applied with probability ½ at a level of 1..9, and a gray square of half the side follows always. Every image of a batch
has its own operations; images that take the same kind of operation are computed together.

Batches are uint8 [N, H, W, 3]; operations on values work on float planes [n, 3, H, W] of their images.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sts_methods.draws import FloatArray, IntArray
from sts_methods.views.colour import luma
from sts_methods.views.geometry import fixed_point, move
from sts_methods.views.specs import StrongView

POOL = (
    "auto_contrast", "brightness", "colour", "contrast", "equalise", "identity", "posterise", "rotate", "sharpness",
    "shear_x", "shear_y", "solarise", "translate_x", "translate_y",
)  # fmt: skip
CODE = {name: code for code, name in enumerate(POOL)}
NUM_LEVELS = 9  # levels 1..9 of a scale that ends at 10
GRAY = 127
DRAWS_PER_OP = 4  # which, whether, level, sign


@dataclass(frozen=True)
class Operations:
    """One operation for each image, all [N]."""

    code: IntArray
    """Position in POOL."""
    level: IntArray
    """Strength, 1..9."""
    sign: IntArray
    """Direction of turns, shears and shifts, -1 or 1."""

    def __getitem__(self, rows: IntArray) -> "Operations":
        return Operations(self.code[rows], self.level[rows], self.sign[rows])

    @property
    def enhancement(self) -> FloatArray:
        """Factor of brightness, colour, contrast and sharpness: .05 + .9·level/10."""
        factor: FloatArray = 0.05 + 0.9 * self.level / 10
        return factor


def num_draws(view: StrongView) -> int:
    """Uniform numbers that `plan_strong` needs for an image."""
    return DRAWS_PER_OP * view.num_ops + 2


@dataclass(frozen=True)
class GroupPlan:
    """Operations of one kind for some images of a batch."""

    group: int
    """Position in GROUPS."""
    rows: Tensor
    values: Tensor
    """What the group's function takes, a row per image."""


@dataclass(frozen=True)
class StrongPlan:
    """RandAugment and Cutout of a batch."""

    operations: tuple[GroupPlan, ...]
    square: tuple[Tensor, Tensor]
    """1 in the rows [N, H] and the bytes of a row [N, W·3] that the gray square covers, else 0."""


def plan_strong(view: StrongView, u: FloatArray, *, size: int) -> StrongPlan:
    """RandAugment and Cutout from uniforms [N, num_draws(view)]."""
    plans: tuple[GroupPlan, ...] = ()
    for number in range(view.num_ops):
        which, whether, level, sign = u[:, DRAWS_PER_OP * number : DRAWS_PER_OP * (number + 1)].T
        code = np.where(whether < view.op_probability, (which * len(POOL)).astype(np.int64), CODE["identity"])
        level, sign = (level * NUM_LEVELS).astype(np.int64) + 1, np.where(sign < 0.5, -1, 1)
        plans += plan_operations(Operations(code, level, sign), size=size)
    return StrongPlan(plans, plan_cutout(u[:, -2:], share=view.cutout, size=size))


def strengthen_(images: Tensor, plan: StrongPlan) -> Tensor:
    """RandAugment and Cutout, in place."""
    return cutout_(apply_operations_(images, plan.operations), plan.square)


def plan_operations(operations: Operations, *, size: int) -> tuple[GroupPlan, ...]:
    """One operation for each image, by groups that are computed together."""
    rows = [np.flatnonzero(members[operations.code]) for members, _, _ in GROUPS]
    return tuple(
        GroupPlan(group, torch.from_numpy(chosen), GROUPS[group][1](operations[chosen], size))
        for group, chosen in enumerate(rows)
        if len(chosen)
    )


def apply_operations_(images: Tensor, plans: tuple[GroupPlan, ...]) -> Tensor:
    """Apply to each image its own operations, in place."""
    for plan in plans:
        made = GROUPS[plan.group][2](images.index_select(0, plan.rows), plan.values)
        _words(images).index_copy_(0, plan.rows, _words(made))
    return images


def _words(images: Tensor) -> Tensor:
    """A view [N, ...] of images in eight-byte words, if they fill such: torch copies word by word (9 times as fast)."""
    flat = images.view(len(images), -1)
    return flat.view(torch.int64) if flat.shape[1] % 8 == 0 else flat


def _columns(*values: np.ndarray[Any, Any], dtype: torch.dtype = torch.float32) -> Tensor:
    """A row of values per image."""
    return torch.from_numpy(np.stack(values, axis=1)).to(dtype)


def _unbind(values: Tensor) -> tuple[Tensor, ...]:
    """The columns, each ready to combine with a batch."""
    return values[:, :, None, None, None].unbind(1)


def _planes(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2).contiguous().float()


def _pixels(planes: Tensor) -> Tensor:
    n, c, h, w = planes.shape
    pixels = planes.new_empty((n, h, w, c), dtype=torch.uint8)
    for channel in range(c):  # three times as fast as a permuted copy
        pixels[..., channel] = planes[:, channel]
    return pixels


def _tone_values(operations: Operations, size: int) -> Tensor:
    slope = operations.enhancement.astype(np.float32)
    colour, contrast, auto = (operations.code == CODE[name] for name in ("colour", "contrast", "auto_contrast"))
    return _columns(slope, (1 - slope) * colour, (1 - slope) * contrast, auto)


def _tone(x: Tensor, parameters: Tensor) -> Tensor:
    """a·x + e·L + b with L the luma and μ its mean.

    Brightness f·x, colour L + f·(x − L), contrast μ + f·(x − μ), auto-contrast 255·(x − low)/(high − low) per channel.
    """
    values = _planes(x)
    gray = luma(values)
    slope, of_luma, of_mean, is_auto = _unbind(parameters)
    mean = gray.mean(dim=(2, 3), keepdim=True).add_(0.5).floor_()
    low, high = values.amin(dim=(2, 3), keepdim=True), values.amax(dim=(2, 3), keepdim=True)
    stretch = torch.where(high > low, 255.0 / (high - low).clamp_(min=1.0), 1.0)
    offset = mean * of_mean - low * stretch * is_auto * (high > low)
    values.mul_(torch.where(is_auto > 0, stretch, slope)).addcmul_(gray, of_luma)
    # The tiny shift keeps sums that should be whole numbers from falling below them in float32.
    return _pixels(values.add_(offset + 1e-4).clamp_(0, 255))


def _no_values(operations: Operations, size: int) -> Tensor:
    return torch.empty(len(operations.code), 0)


def _equalise(x: Tensor, parameters: Tensor) -> Tensor:
    """Spread the histogram of each channel: v -> (s/2 + #{u < v}) / s, whole numbers, s = (#all − #brightest) / 255."""
    n, h, w, c = x.shape
    values = x.permute(0, 3, 1, 2).reshape(n * c, h * w).long()
    counts = torch.zeros(n * c, 256, dtype=torch.long, device=x.device)
    counts.scatter_add_(1, values, torch.ones_like(values))
    step = (h * w - counts.gather(1, values.amax(dim=1, keepdim=True))) // 255
    table = (counts.cumsum(dim=1) - counts + step // 2) // step.clamp(min=1)
    table = torch.where(step > 0, table.clamp_(max=255), torch.arange(256, device=x.device))
    return _pixels(table.gather(1, values).reshape(n, c, h, w))


def _level_values(operations: Operations, size: int) -> Tensor:
    posterise = operations.code == CODE["posterise"]
    kept = np.where(posterise, 256 - (1 << (4 - 4 * operations.level // 10)), 255)
    last = np.where(posterise, 255, 255 - 256 * operations.level // 10)
    return _columns(kept, last, dtype=torch.uint8)


def _levels(x: Tensor, parameters: Tensor) -> Tensor:
    """Posterise: keep the upper 4 + ⌊4·level/10⌋ bits. Solarise: invert the values from 256 − ⌊256·level/10⌋ up."""
    kept, last = _unbind(parameters)
    x = x & kept
    return torch.where(x <= last, x, 255 - x)


def _sharpness_values(operations: Operations, size: int) -> Tensor:
    return _columns(operations.enhancement)


def _sharpness(x: Tensor, parameters: Tensor) -> Tensor:
    """s + f·(x − s), s smoothed by the 3x3 kernel (1 1 1, 1 5 1, 1 1 1)/13; the border pixels stay."""
    (factor,) = _unbind(parameters)
    values = _planes(x)
    smooth = values.clone()
    rows = (values[:, :, :-2] + values[:, :, 1:-1]).add_(values[:, :, 2:])
    boxes = (rows[..., :-2] + rows[..., 1:-1]).add_(rows[..., 2:]).add_(values[:, :, 1:-1, 1:-1], alpha=4)
    smooth[:, :, 1:-1, 1:-1] = boxes.div_(13).add_(0.5).floor_()
    return _pixels(smooth.lerp_(values, factor).add_(1e-4).clamp_(0, 255))


def _affine_values(operations: Operations, size: int) -> Tensor:
    """Where in the source a pixel of the result comes from: turns of 30°·level/10, shears of .3·level/10 and shifts of
    .3·level/10 of the side, black outside."""
    level, sign = operations.level, operations.sign
    rotate, shear_x, shear_y, translate_x, translate_y = (
        operations.code == CODE[name] for name in ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
    )
    angle = np.where(rotate, -np.deg2rad(sign * (30 * level // 10)), 0.0)
    shear = sign * 0.3 * level / 10
    shift = sign * np.trunc(0.3 * level / 10 * size)
    cos, sin, centre = np.cos(angle), np.sin(angle), size / 2
    matrices = np.empty((len(level), 2, 3))
    matrices[:, 0, 0] = matrices[:, 1, 1] = cos
    matrices[:, 0, 1] = sin + shear * shear_x
    matrices[:, 1, 0] = -sin + shear * shear_y
    matrices[:, 0, 2] = centre * (1 - cos - sin) + shift * translate_x
    matrices[:, 1, 2] = centre * (1 - cos + sin) + shift * translate_y
    return fixed_point(matrices)


def _members(*names: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.isin(np.arange(len(POOL)), [CODE[name] for name in names])


_Members = np.ndarray[tuple[int], np.dtype[np.bool_]]
GROUPS: tuple[tuple[_Members, Callable[[Operations, int], Tensor], Callable[[Tensor, Tensor], Tensor]], ...] = (
    (_members("auto_contrast", "brightness", "colour", "contrast"), _tone_values, _tone),
    (_members("equalise"), _no_values, _equalise),
    (_members("posterise", "solarise"), _level_values, _levels),
    (_members("sharpness"), _sharpness_values, _sharpness),
    (_members("rotate", "shear_x", "shear_y", "translate_x", "translate_y"), _affine_values, move),
)
"""Operations that are computed together: which, their values for images of a size, and what applies them."""


def plan_cutout(u: FloatArray, *, share: float, size: int) -> tuple[Tensor, Tensor]:
    """A square around a uniform point (x, y), cut off at the border.

    Like the reference's rectangle it includes both ends: 17 pixels for a side of 16.
    """
    side = int(share * size)
    first = np.maximum(u * size - side / 2, 0).astype(np.int64)[:, :, None]
    inside = torch.from_numpy((np.arange(size) >= first) & (np.arange(size) <= first + side)).to(torch.uint8)
    return inside[:, 1], inside[:, 0].repeat_interleave(3, dim=1)


def cutout_(images: Tensor, square: tuple[Tensor, Tensor]) -> Tensor:
    """Paint a gray square into each image, in place."""
    rows, columns = square
    gray = rows[:, :, None] & columns[:, None, :]
    images.view(gray.shape).mul_(1 - gray).add_(gray, alpha=GRAY)  # 14 times as fast as masked_fill_ on a CPU
    return images
