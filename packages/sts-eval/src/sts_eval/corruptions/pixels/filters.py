"""What several corruptions are made of: Gaussian filter, zoom, ImageMagick's motion blur, and levels in [0, 1]."""

import math
from functools import lru_cache
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from sts_eval.corruptions.folders import ImageArray

Levels = npt.NDArray[Any]
"""Pixels as floating-point numbers, black 0 and white 1 where nothing else is said."""

Draws = np.random.RandomState
"""The release draws from numpy's global generator: this one gives the same numbers for the same seed."""


def to_bytes(levels: Levels) -> ImageArray:
    """Clip to [0, 1] and cut off to 0..255, as the release does."""
    clipped = np.clip(levels, 0, 1)
    clipped *= 255
    result: ImageArray = clipped.astype(np.uint8)
    return result


@lru_cache(maxsize=64)
def gaussian_kernel(sigma: float, truncate: float) -> npt.NDArray[np.float64]:
    """exp(-x²/2σ²) for |x| ≤ truncate·σ, of sum 1."""
    reach = int(truncate * sigma + 0.5)
    kernel = np.exp(-0.5 * np.square(np.arange(-reach, reach + 1) / max(sigma, 1e-9)))
    normalised: npt.NDArray[np.float64] = kernel / kernel.sum()
    return normalised


def gaussian(levels: Levels, sigma: float) -> Levels:
    """Gaussian filter cut at 4σ with repeated borders: what scikit-image does unless told otherwise."""
    kernel = gaussian_kernel(sigma, 4.0)
    return np.asarray(cv2.sepFilter2D(levels, -1, kernel, kernel, borderType=cv2.BORDER_REPLICATE))


@lru_cache(maxsize=256)
def _zoom_positions(side: int, factor: float) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
    """For each pixel along an axis the pixel to its left in the original, and how far it lies beyond that."""
    inside = math.ceil(side / factor)
    zoomed = round(inside * factor)
    positions = np.arange(side) + (zoomed - side) // 2
    positions = np.minimum(positions * ((inside - 1) / (zoomed - 1)), inside - 1)
    left = np.minimum(positions.astype(np.intp), inside - 2)
    return left + (side - inside) // 2, positions - left


def zoom(levels: Levels, factor: float) -> Levels:
    """The middle of an image, enlarged linearly by `factor` to the image's size; corners of the middle stay corners."""
    rows, down = _zoom_positions(levels.shape[0], factor)
    columns, right = _zoom_positions(levels.shape[1], factor)
    extra = (1,) * (levels.ndim - 2)
    down = down.astype(levels.dtype).reshape(-1, 1, *extra)
    right = right.astype(levels.dtype).reshape(1, -1, *extra)
    taller = levels[rows] * (1 - down) + levels[rows + 1] * down
    return np.asarray(taller[:, columns] * (1 - right) + taller[:, columns + 1] * right)


def motion_blur(image: ImageArray, radius: int, sigma: float, angle: float) -> ImageArray:
    """ImageMagick's MotionBlurImage: half a Gaussian of 2·radius + 1 taps along a line."""
    taps = np.arange(2 * radius + 1)
    weights = np.exp(-0.5 * np.square(taps / sigma))
    weights /= weights.sum()
    down, right = (np.ceil(taps * f(math.radians(angle)) - 0.5).astype(int) for f in (math.sin, math.cos))
    # One filter just large enough for the line; the pixel itself is its first tap.
    top, left = down.min(), right.min()
    kernel = np.zeros((down.max() - top + 1, right.max() - left + 1), dtype=np.float32)
    np.add.at(kernel, (down - top, right - left), weights)
    blurred = cv2.filter2D(
        image.astype(np.float32), -1, kernel, anchor=(int(-left), int(-top)), borderType=cv2.BORDER_REPLICATE
    )
    # ImageMagick 6 rounds to 1/257 of a level, its own 16 bits, then cuts off.
    result: ImageArray = np.minimum(blurred + 0.5 / 257, 255).astype(np.uint8)
    return result
