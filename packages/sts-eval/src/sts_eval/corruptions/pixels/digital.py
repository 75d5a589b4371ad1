"""Digital changes: colour, geometry, coarse pixels, JPEG."""

import io
from functools import lru_cache

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from sts_eval.corruptions.folders import ImageArray
from sts_eval.corruptions.pixels.filters import Draws, Levels, gaussian_kernel, to_bytes


def brightness(image: ImageArray, added: float, draws: Draws) -> ImageArray:
    """Add to V of HSV; draws nothing."""
    value, saturation, lack = _hsv(image)
    return to_bytes(np.minimum(value + added, 1) * (1 - saturation * lack))


def saturate(image: ImageArray, strength: tuple[float, float], draws: Draws) -> ImageArray:
    """Scale and shift S of HSV; draws nothing."""
    factor, offset = strength
    value, saturation, lack = _hsv(image)
    return to_bytes(value * (1 - np.clip(saturation * factor + offset, 0, 1) * lack))


def _hsv(image: ImageArray) -> tuple[Levels, Levels, Levels]:
    """V and S of HSV, and instead of the hue what each channel lacks at S = 1: RGB is V·(1 - S·lack).

    Gray has the hue of red, as in the release, whose `saturate` reddens it.
    """
    levels = image / 255.0
    value = levels.max(axis=2, keepdims=True)
    spread = value - levels.min(axis=2, keepdims=True)
    lack = np.where(spread > 0, (value - levels) / np.maximum(spread, 1e-9), np.array([0.0, 1.0, 1.0]))
    return value, spread / np.maximum(value, 1e-9), lack


def contrast(image: ImageArray, factor: float, draws: Draws) -> ImageArray:
    """Shrink the distance from the mean colour; draws nothing."""
    mean = (image / 255.0).mean(axis=(0, 1))
    every_level = np.arange(256)[:, None] / 255
    return np.asarray(cv2.LUT(image, to_bytes((every_level - mean) * factor + mean)[None]))


def jpeg_compression(image: ImageArray, quality: int, draws: Draws) -> ImageArray:
    """Through JPEG and back; draws nothing."""
    content = io.BytesIO()
    Image.fromarray(image).save(content, "JPEG", quality=quality)
    return np.asarray(Image.open(content))


def pixelate(image: ImageArray, scale: float, draws: Draws) -> ImageArray:
    """Fewer, larger pixels; draws nothing."""
    height, width = image.shape[:2]
    small = Image.fromarray(image).resize((int(width * scale), int(height * scale)), Image.Resampling.BOX)
    return np.asarray(small.resize((width, height), Image.Resampling.BOX))


def elastic_transform(image: ImageArray, lengths: tuple[float, float, float], draws: Draws) -> ImageArray:
    """A random affine map, then a smooth random displacement of every pixel.

    With lengths (a, σ, c), the three points of the affine map move by U(-c, c); the displacement is a·G_σ * U(-1, 1)
    in x and in y.
    """
    amplitude, sigma, shift = lengths
    height, width = image.shape[:2]
    moved = _random_affine(image.astype(np.float32), shift, draws)
    noise = draws.uniform(-1, 1, size=(2, height, width))  # [dx, dy]
    if amplitude == 0:
        return to_bytes(moved / 255)
    right, down = amplitude * (_blur_matrix(height, sigma) @ noise @ _blur_matrix(width, sigma).T)
    rows, columns = np.mgrid[:height, :width]
    return to_bytes(_sample(moved, rows + down, columns + right) / 255)


def _random_affine(image: Levels, shift: float, draws: Draws) -> Levels:
    """Move three corners of the central square, two thirds of the side wide, by up to `shift` pixels each."""
    size = np.array(image.shape[:2], dtype=np.float32)
    center, reach = size // 2, min(image.shape[:2]) // 3
    corners = center + reach * np.array([[1, 1], [1, -1], [-1, -1]], dtype=np.float32)
    targets = corners + draws.uniform(-shift, shift, size=corners.shape).astype(np.float32)
    matrix = cv2.getAffineTransform(corners, targets)
    moved = cv2.warpAffine(image, matrix, image.shape[1::-1], borderMode=cv2.BORDER_REFLECT_101)
    return np.asarray(moved)


@lru_cache(maxsize=32)
def _blur_matrix(side: int, sigma: float) -> npt.NDArray[np.float64]:
    """The Gaussian filter along one axis (mirrored borders, cut at 3 sigma) as a matrix.

    The release smooths with sigma up to 171 px on 224 px: 1025 taps a pixel, against 224 as a matrix product.
    """
    kernel = gaussian_kernel(sigma, 3.0)
    reach = len(kernel) // 2
    matrix = np.zeros((side, side))
    for position in range(side):
        np.add.at(matrix[position], _mirrored(np.arange(position - reach, position + reach + 1), side), kernel)
    return matrix


def _mirrored(index: npt.NDArray[np.intp], side: int) -> npt.NDArray[np.intp]:
    """... 1 0 | 0 1 2 ... side-1 | side-1 ..."""
    index = index % (2 * side)
    return np.minimum(index, 2 * side - 1 - index)


def _sample(image: Levels, rows: Levels, columns: Levels) -> Levels:
    """Bilinear interpolation at floating-point positions, borders mirrored."""
    height, width = image.shape[:2]
    top, left = np.floor(rows).astype(np.intp), np.floor(columns).astype(np.intp)
    down, right = ((p - i).astype(np.float32)[..., None] for p, i in ((rows, top), (columns, left)))
    flat = image.reshape(-1, 3)
    y = [_mirrored(top + k, height) * width for k in (0, 1)]
    x = [_mirrored(left + k, width) for k in (0, 1)]
    upper = flat[y[0] + x[0]] * (1 - right) + flat[y[0] + x[1]] * right
    lower = flat[y[1] + x[0]] * (1 - right) + flat[y[1] + x[1]] * right
    return np.asarray(upper * (1 - down) + lower * down)
