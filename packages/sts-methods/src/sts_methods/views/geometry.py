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


def crop_resize(images: Tensor, boxes: IntArray, flip: BoolArray, *, size: int, interpolation: Interpolation) -> Tensor:
    """Cut a box out of each image [N, C, H, W], resize it to `size` with antialias, and mirror it where `flip` says.

    A separable resize is two small matrix products, out = A·x·Bᵀ with one pair (A, B) per image; mirroring reverses B.
    """
    box = torch.from_numpy(boxes).to(images.device, torch.float32)
    rows = resize_matrix(box[:, 0], box[:, 2], images.shape[-2], size, interpolation)
    columns = resize_matrix(box[:, 1], box[:, 3], images.shape[-1], size, interpolation)
    mirrored = torch.from_numpy(flip).to(images.device)[:, None, None]
    columns = torch.where(mirrored, columns.flip(1), columns)
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


def shift_flip(images: Tensor, shifts: IntArray, flip: BoolArray, *, padding: int) -> Tensor:
    """Mirror, pad by reflection and cut out at `shifts` [N, 2] in 0..2·padding: flip and padded random crop.

    Here and in `move` images are [N, H, W, C]: a pixel is contiguous, and its channels move together.
    """
    h, w = images.shape[1:3]
    rows = _reflect(np.arange(h) + (shifts[:, :1] - padding), h)
    columns = _reflect(np.arange(w) + (shifts[:, 1:] - padding), w)
    columns = np.where(flip[:, None], w - 1 - columns, columns).astype(np.int32)
    starts = (rows * w + (np.arange(len(images)) * h * w)[:, None]).astype(np.int32)
    positions = torch.from_numpy(starts[:, :, None] + columns[:, None, :]).to(images.device)
    return images.reshape(h * w * len(images), -1).index_select(0, positions.reshape(-1)).reshape(images.shape)


def move(images: Tensor, matrices: FloatArray) -> Tensor:
    """Fill pixel (x, y) from the pixel at ⌊matrix·(x + ½, y + ½, 1)⌋, black outside: Pillow's nearest filter."""
    n, h, w, c = images.shape
    matrices = matrices.copy()
    matrices[:, :, 2] += (matrices[:, :, 0] + matrices[:, :, 1]) / 2
    # Like Pillow in 16-bit fixed point, so that pixels on the border of two cells fall to the same side.
    fixed = np.floor(matrices * 65536 + 0.5).astype(np.int32)
    row_starts = fixed[:, :, 1:2] * np.arange(h, dtype=np.int32) + fixed[:, :, 2:]
    m = torch.from_numpy(fixed[:, :, 0]).to(images.device)[:, :, None, None]
    x = torch.arange(w, device=images.device, dtype=torch.int32)
    column, row = (torch.from_numpy(row_starts).to(images.device)[..., None] + m * x).bitwise_right_shift_(16).unbind(1)
    outside = (column < 0) | (column >= w) | (row < 0) | (row >= h)
    base = torch.arange(0, n * h * w, h * w, device=images.device, dtype=torch.int32)
    positions = (row * w).add_(column).add_(base[:, None, None]).masked_fill_(outside, n * h * w)
    black = images.new_zeros(1, c)
    padded = torch.cat([images.reshape(-1, c), black])
    return padded.index_select(0, positions.reshape(-1)).reshape(n, h, w, c)


def _reflect(positions: IntArray, length: int) -> IntArray:
    """Positions outside 0..length-1 mirrored at the border pixel, which is not repeated."""
    positions = np.abs(positions)
    return np.where(positions >= length, 2 * (length - 1) - positions, positions)


def rotate(images: Tensor, degrees: FloatArray) -> Tensor:
    """Turn each image about its centre, bilinear, with the border's colour outside."""
    angle = torch.from_numpy(np.deg2rad(degrees)).to(images.device, torch.float32)
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    theta = torch.stack([cos, -sin, zero, sin, cos, zero], dim=1).reshape(-1, 2, 3)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images.float(), grid, padding_mode="border", align_corners=False).round_()
