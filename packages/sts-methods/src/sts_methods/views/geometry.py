"""Crops, flips, shifts and turns: their draws, and how they are applied to a batch of images on any device.

Boxes are [N, 4] integer arrays of (top, left, height, width).
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sts_methods.draws import BoolArray, FloatArray, IntArray
from sts_methods.views.specs import Interpolation, Range

CROP_TRIES = 10  # torchvision, RandomResizedCrop.get_params
CROP_DRAWS = 2 * CROP_TRIES + 2


def draw_crops(u: FloatArray, *, heights: IntArray, widths: IntArray, scale: Range, ratio: Range) -> IntArray:
    """Boxes of random resized crops from uniforms [N, CROP_DRAWS], distributed as torchvision's.

    Ten times: area = U(scale)·H·W, log r = U(log ratio), w = round(√(area·r)), h = round(√(area/r)); the first pair
    that fits is placed uniformly. If none fits, the largest centred crop within the ratios.
    """
    area = (u[:, :CROP_TRIES] * (scale[1] - scale[0]) + scale[0]) * (heights * widths)[:, None]
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = np.exp(u[:, CROP_TRIES : 2 * CROP_TRIES] * (high - low) + low)
    w = np.rint(np.sqrt(area * aspect)).astype(np.int64)
    h = np.rint(np.sqrt(area / aspect)).astype(np.int64)
    fits = (w > 0) & (w <= widths[:, None]) & (h > 0) & (h <= heights[:, None])
    first = fits.argmax(axis=1)[:, None]
    h, w = np.take_along_axis(h, first, 1)[:, 0], np.take_along_axis(w, first, 1)[:, 0]
    top = (u[:, -2] * (heights - h + 1)).astype(np.int64)
    left = (u[:, -1] * (widths - w + 1)).astype(np.int64)
    boxes = np.stack([top, left, h, w], axis=1)
    return np.where(fits.any(axis=1)[:, None], boxes, central_crops(heights, widths, ratio))


def central_crops(heights: IntArray, widths: IntArray, ratio: Range) -> IntArray:
    """The largest centred boxes whose width over height lies within `ratio`."""
    shape = widths / heights
    w = np.where(shape > ratio[1], np.rint(heights * ratio[1]).astype(np.int64), widths)
    h = np.where(shape < ratio[0], np.rint(widths / ratio[0]).astype(np.int64), heights)
    return np.stack([(heights - h) // 2, (widths - w) // 2, h, w], axis=1)


def crop_resize(images: Tensor, boxes: Tensor, flip: Tensor, *, size: int, interpolation: Interpolation) -> Tensor:
    """Cut a box out of each image [N, C, H, W], resize it to `size` with antialias, and mirror it where `flip` says.

    A separable resize is two small matrix products, out = A·x·Bᵀ with one pair (A, B) per image; mirroring reverses B.
    """
    box = boxes.to(torch.float32)
    rows = resize_matrix(box[:, 0], box[:, 2], images.shape[-2], size, interpolation)
    columns = resize_matrix(box[:, 1], box[:, 3], images.shape[-1], size, interpolation)
    columns = torch.where(flip[:, None, None], columns.flip(1), columns)
    n, c, h, w = images.shape
    x = images.permute(0, 2, 3, 1).reshape(n, h, w * c).float()
    x = torch.bmm(rows, x).reshape(n, size, w, c).permute(0, 3, 1, 2).reshape(n, c * size, w)
    x = torch.bmm(x, columns.transpose(1, 2)).reshape(n, c, size, size)
    return x.add_(0.5).clamp_(0, 255).floor_()


def resize_matrix(start: Tensor, length: Tensor, source: int, size: int, interpolation: Interpolation) -> Tensor:
    """Weights [N, size, source] of Pillow's antialiased resize of the interval [start, start + length) to `size`.

    w(o, i) = k((i + ½ − c(o)) / max(s, 1)), s = length/size, c(o) = start + (o + ½)·s, zero outside, rows sum to 1.
    """
    output = torch.arange(size, device=start.device, dtype=torch.float32) + 0.5
    pixel = torch.arange(source, device=start.device, dtype=torch.float32)
    step = (length / size)[:, None, None]
    centre = start[:, None, None] + output[None, :, None] * step
    distance = ((pixel + 0.5 - centre) / step.clamp(min=1.0)).abs_()
    weights = triangle(distance) if interpolation == "bilinear" else cubic(distance)
    inside = (pixel >= start[:, None]) & (pixel < (start + length)[:, None])
    weights = weights * inside[:, None, :]
    return weights / weights.sum(dim=2, keepdim=True)


def triangle(distance: Tensor) -> Tensor:
    """k(t) = max(1 − |t|, 0)."""
    return (1.0 - distance).clamp_(min=0.0)


def cubic(distance: Tensor) -> Tensor:
    """Keys' cubic kernel with a = −½, as Pillow uses it."""
    t = distance
    near = (1.5 * t - 2.5) * t * t + 1.0
    far = ((-0.5 * t + 2.5) * t - 4.0) * t + 2.0
    return torch.where(t < 1.0, near, torch.where(t < 2.0, far, torch.zeros_like(t)))


def shifted_positions(
    shifts: IntArray, flip: BoolArray, *, padding: int, height: int, width: int
) -> tuple[Tensor, Tensor]:
    """The source row [N, H] and column [N, W] of each pixel of a mirrored image, padded by reflection and cut out at
    `shifts` [N, 2] in 0..2·padding."""
    rows = _reflect(np.arange(height) + (shifts[:, :1] - padding), height)
    columns = _reflect(np.arange(width) + (shifts[:, 1:] - padding), width)
    columns = np.where(flip[:, None], width - 1 - columns, columns)
    return torch.from_numpy(rows.astype(np.int32)), torch.from_numpy(columns.astype(np.int32))


def shift_flip(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The pixels of each image at its own rows and columns: flip and padded random crop.

    Here and in `move` images are [N, H, W, C]: a pixel is contiguous, and its channels move together.
    """
    n, h, w = images.shape[:3]
    starts = (rows * w).add_(_first_pixels(n, h * w, images.device))
    positions = starts[:, :, None] + columns[:, None, :]
    return images.reshape(h * w * n, -1).index_select(0, positions.reshape(-1)).reshape(images.shape)


def _first_pixels(num: int, size: int, device: torch.device) -> Tensor:
    return torch.arange(0, num * size, size, device=device, dtype=torch.int32)[:, None]


def fixed_point(matrices: FloatArray) -> Tensor:
    """Matrices [N, 2, 3] for pixel centres in 16-bit fixed point, like Pillow's: pixels on the border of two cells fall
    to the same side."""
    matrices = matrices.copy()
    matrices[:, :, 2] += (matrices[:, :, 0] + matrices[:, :, 1]) / 2
    return torch.from_numpy(np.floor(matrices * 65536 + 0.5).astype(np.int32))


def move(images: Tensor, matrices: Tensor) -> Tensor:
    """Fill pixel (x, y) from the pixel at ⌊matrix·(x + ½, y + ½, 1)⌋, black outside: Pillow's nearest filter.

    The matrices are those of `fixed_point`.
    """
    n, h, w, c = images.shape
    across, down, start = matrices[..., None, None].unbind(2)
    x, y = (torch.arange(side, device=images.device, dtype=torch.int32) for side in (w, h))
    column, row = (down * y[:, None] + start + across * x).bitwise_right_shift_(16).unbind(1)
    outside = (column < 0) | (column >= w) | (row < 0) | (row >= h)
    base = _first_pixels(n, h * w, images.device)
    positions = (row * w).add_(column).add_(base[:, None]).masked_fill_(outside, n * h * w)
    black = images.new_zeros(1, c)
    padded = torch.cat([images.reshape(-1, c), black])
    return padded.index_select(0, positions.reshape(-1)).reshape(n, h, w, c)


def _reflect(positions: IntArray, length: int) -> IntArray:
    """Positions outside 0..length-1 mirrored at the border pixel, which is not repeated."""
    positions = np.abs(positions)
    return np.where(positions >= length, 2 * (length - 1) - positions, positions)


def rotate(images: Tensor, angle: Tensor) -> Tensor:
    """Turn each image about its centre by its angle, bilinear, with the border's colour outside."""
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    theta = torch.stack([cos, -sin, zero, sin, cos, zero], dim=1).reshape(-1, 2, 3)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images.float(), grid, padding_mode="border", align_corners=False).round_()
