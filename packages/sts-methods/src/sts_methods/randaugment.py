"""FixMatch's strong augmentation: RandAugment from a pool of 14 operations, then Cutout.

Values as in kekmodel/FixMatch-pytorch, dataset/randaugment.py (040be3b): two operations are drawn for an image, each is
applied with probability ½ at a level of 1..9, and a gray square of half the side follows always. Every image of a batch
has its own operations; images that take the same kind of operation are computed together.
"""

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sts_methods.colour import luma, rows_of, saturation
from sts_methods.draws import FloatArray, IntArray
from sts_methods.geometry import move
from sts_methods.views import StrongView

POOL = (
    "auto_contrast", "brightness", "colour", "contrast", "equalise", "identity", "posterise", "rotate", "sharpness",
    "shear_x", "shear_y", "solarise", "translate_x", "translate_y",
)  # fmt: skip
NUM_LEVELS = 9  # levels 1..9 of a scale that ends at 10
GRAY = 127
DRAWS_PER_OP = 4  # which, whether, level, sign


def num_draws(view: StrongView) -> int:
    """Uniform numbers that `strengthen` needs for an image."""
    return DRAWS_PER_OP * view.num_ops + 2


def strengthen(images: Tensor, view: StrongView, u: FloatArray) -> Tensor:
    """RandAugment and Cutout of a uint8 batch [N, 3, H, W] from uniforms [N, num_draws(view)]."""
    x = images.clone(memory_format=torch.channels_last)
    for number in range(view.num_ops):
        which, whether, level, sign = u[:, DRAWS_PER_OP * number : DRAWS_PER_OP * (number + 1)].T
        operation = (which * len(POOL)).astype(np.int64)
        operation[whether >= view.op_probability] = POOL.index("identity")
        apply_operations_(x, operation, (level * NUM_LEVELS).astype(np.int64) + 1, np.where(sign < 0.5, -1, 1))
    return cutout_(x, u[:, -2:], share=view.cutout)


def apply_operations_(x: Tensor, operation: IntArray, level: IntArray, sign: IntArray) -> Tensor:
    """Apply to each image its own operation (a position in POOL) at its own level, in place."""
    for names, function in GROUPS:
        chosen = np.isin(operation, [POOL.index(name) for name in names])
        if chosen.any():
            rows = rows_of(chosen, x.device)
            x[rows] = function(x[rows], operation[chosen], level[chosen], sign[chosen])
    return x


def _column(values: FloatArray | IntArray, like: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.from_numpy(np.asarray(values)).to(like.device, dtype)[:, None, None, None]


def _enhancement(level: IntArray) -> FloatArray:
    """Factor of brightness, colour, contrast and sharpness: .05 + .9·level/10."""
    factor: FloatArray = 0.05 + 0.9 * level / 10
    return factor


def _tone(x: Tensor, operation: IntArray, level: IntArray, sign: IntArray) -> Tensor:
    """Brightness f·x, contrast μ + f·(x − μ) and auto-contrast 255·(x − low)/(high − low): all are a·x + b."""
    values = x.float()
    factor = _column(_enhancement(level), x)
    mean = luma(values).mean(dim=(2, 3), keepdim=True).add_(0.5).floor_()
    low, high = values.amin(dim=(2, 3), keepdim=True), values.amax(dim=(2, 3), keepdim=True)
    stretch = torch.where(high > low, 255.0 / (high - low).clamp(min=1.0), 1.0)
    is_contrast = _column(operation == POOL.index("contrast"), x, torch.bool)
    is_auto = _column(operation == POOL.index("auto_contrast"), x, torch.bool)
    slope = torch.where(is_auto, stretch, factor)
    offset = torch.where(is_contrast, mean * (1 - factor), 0.0)
    offset = torch.where(is_auto & (high > low), -low * stretch, offset)
    # The tiny shift keeps quotients that are whole numbers from falling below them in float32.
    return torch.addcmul(offset + 1e-4, values, slope).clamp_(0, 255).to(torch.uint8)


def _colour(x: Tensor, operation: IntArray, level: IntArray, sign: IntArray) -> Tensor:
    return saturation(x.float(), _column(_enhancement(level), x)).to(torch.uint8)


def _equalise(x: Tensor, operation: IntArray, level: IntArray, sign: IntArray) -> Tensor:
    """Spread the histogram of each channel: v -> (s/2 + #{u < v}) / s, whole numbers, s = (#all − #brightest) / 255."""
    n, c, h, w = x.shape
    values = x.reshape(n * c, h * w).long()
    counts = torch.zeros(n * c, 256, dtype=torch.long, device=x.device)
    counts.scatter_add_(1, values, torch.ones_like(values))
    step = (h * w - counts.gather(1, values.amax(dim=1, keepdim=True))) // 255
    table = (counts.cumsum(dim=1) - counts + step // 2) // step.clamp(min=1)
    table = torch.where(step > 0, table.clamp_(max=255), torch.arange(256, device=x.device))
    return table.gather(1, values).to(torch.uint8).reshape(n, c, h, w)


def _posterise(x: Tensor, operation: IntArray, level: IntArray, sign: IntArray) -> Tensor:
    """Keep the upper 4 + ⌊4·level/10⌋ bits."""
    bits = 4 + 4 * level // 10
    return x & _column(256 - (1 << (8 - bits)), x, torch.uint8)


def _solarise(x: Tensor, operation: IntArray, level: IntArray, sign: IntArray) -> Tensor:
    """Invert the values from 256 − ⌊256·level/10⌋ up."""
    threshold = _column(256 - 256 * level // 10, x, torch.uint8)
    return torch.where(x < threshold, x, 255 - x)


def _sharpness(x: Tensor, operation: IntArray, level: IntArray, sign: IntArray) -> Tensor:
    """s + f·(x − s), s smoothed by the 3x3 kernel (1 1 1, 1 5 1, 1 1 1)/13; the border pixels stay."""
    values = x.float()
    smooth = values.clone()
    boxes = F.avg_pool2d(values, 3, stride=1) * (9 / 13) + values[:, :, 1:-1, 1:-1] * (4 / 13)
    smooth[:, :, 1:-1, 1:-1] = boxes.add_(0.5).floor_()
    return torch.lerp(smooth, values, _column(_enhancement(level), x)).add_(1e-4).clamp_(0, 255).to(torch.uint8)


def affine_matrices(operation: IntArray, level: IntArray, sign: IntArray, *, size: int) -> FloatArray:
    """[N, 2, 3]: where in the source the pixel (x, y) of the result comes from."""
    rotate, shear_x, shear_y, translate_x, translate_y = (
        operation == POOL.index(name) for name in ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
    )
    angle = np.where(rotate, -np.deg2rad(sign * (30 * level // 10)), 0.0)
    shear = sign * 0.3 * level / 10
    shift = sign * np.trunc(0.3 * level / 10 * size)
    cos, sin = np.cos(angle), np.sin(angle)
    centre = size / 2
    matrices = np.empty((len(operation), 2, 3))
    matrices[:, 0, 0] = matrices[:, 1, 1] = cos
    matrices[:, 0, 1] = sin + np.where(shear_x, shear, 0.0)
    matrices[:, 1, 0] = -sin + np.where(shear_y, shear, 0.0)
    matrices[:, 0, 2] = np.where(rotate, centre * (1 - cos - sin), 0.0) + np.where(translate_x, shift, 0.0)
    matrices[:, 1, 2] = np.where(rotate, centre * (1 - cos + sin), 0.0) + np.where(translate_y, shift, 0.0)
    return matrices


def _affine(x: Tensor, operation: IntArray, level: IntArray, sign: IntArray) -> Tensor:
    """Rotate by 30°·level/10, shear by .3·level/10 or shift by .3·level/10 of the side, black outside."""
    return move(x, affine_matrices(operation, level, sign, size=x.shape[-1]))


GROUPS: tuple[tuple[tuple[str, ...], Callable[[Tensor, IntArray, IntArray, IntArray], Tensor]], ...] = (
    (("auto_contrast", "brightness", "contrast"), _tone),
    (("colour",), _colour),
    (("equalise",), _equalise),
    (("posterise",), _posterise),
    (("solarise",), _solarise),
    (("sharpness",), _sharpness),
    (("rotate", "shear_x", "shear_y", "translate_x", "translate_y"), _affine),
)


def cutout_(x: Tensor, u: FloatArray, *, share: float) -> Tensor:
    """Paint a gray square around a uniform point, cut off at the border, in place.

    Like the reference's rectangle it includes both ends: 17 pixels for a side of 16.
    """
    side, size = int(share * x.shape[-1]), x.shape[-1]
    start = np.maximum(u * size - side / 2, 0).astype(np.int64)
    first = torch.from_numpy(start).to(x.device)[:, :, None]
    last = torch.from_numpy(np.minimum(start + side, size)).to(x.device)[:, :, None]
    position = torch.arange(size, device=x.device)
    inside = (position >= first) & (position <= last)
    return x.masked_fill_((inside[:, 1, :, None] & inside[:, 0, None, :])[:, None], GRAY)
