"""Blur: lens, frosted glass, movement of the camera along a line and towards the scene."""

from functools import lru_cache

import cv2
import numpy as np
import numpy.typing as npt

from sts_eval.corruptions.folders import ImageArray
from sts_eval.corruptions.pixels import filters
from sts_eval.corruptions.pixels.filters import Draws, to_bytes

Index = npt.NDArray[np.intp]


def gaussian_blur(image: ImageArray, sigma: float, draws: Draws) -> ImageArray:
    """Gaussian filter; draws nothing."""
    return to_bytes(filters.gaussian(image / 255.0, sigma))


@lru_cache(maxsize=16)
def _disk(radius: float, alias_blur: float) -> npt.NDArray[np.float32]:
    """A disk of sum 1, its edge softened."""
    reach, taps = (8, 3) if radius <= 8 else (int(radius), 5)
    line = np.arange(-reach, reach + 1)
    disk = (line[:, None] ** 2 + line**2 <= radius**2).astype(np.float32)
    return np.asarray(cv2.GaussianBlur(disk / disk.sum(), (taps, taps), sigmaX=alias_blur))


def defocus_blur(image: ImageArray, strength: tuple[float, float], draws: Draws) -> ImageArray:
    """Every point becomes a disk; draws nothing."""
    return to_bytes(cv2.filter2D(image / 255.0, -1, _disk(*strength)))


def glass_blur(image: ImageArray, strength: tuple[float, int, int], draws: Draws) -> ImageArray:
    """Blur, let pixels take the colour of random neighbours, blur again."""
    sigma, reach, rounds = strength
    levels = filters.gaussian(image / 255.0, sigma)
    scattered = (levels * 255).astype(np.uint8).reshape(-1, 3)
    height, width, _ = image.shape
    for _ in range(rounds):
        scattered = scattered[_neighbours(height, width, reach, draws)]
    return to_bytes(filters.gaussian(scattered.reshape(image.shape) / 255.0, sigma))


def _neighbours(height: int, width: int, reach: int, draws: Draws) -> Index:
    """For each pixel the one whose colour it ends up with.

    The release walks from the last pixel to the first and means to swap each with a neighbour, but numpy's views make
    of the swap a copy: a pixel takes what its neighbour has at that moment. A neighbour further on has been walked over
    and has itself the colour of another, so its pointer is followed: doubling ends after the log of the longest chain.
    """
    rows, columns = np.arange(height - reach, reach, -1), np.arange(width - reach, reach, -1)
    here = (rows[:, None] * width + columns).ravel()
    right, down = draws.randint(-reach, reach, size=(len(here), 2)).T
    source = here + down * width + right

    # Nodes 0..n-1 are the colours before, n..2n-1 those after; a pixel that is not walked over keeps its own.
    num_pixels = height * width
    pointer = np.concatenate([np.arange(num_pixels), np.arange(num_pixels)])
    pointer[num_pixels + here] = source
    walked = np.zeros(num_pixels, dtype=bool)
    walked[here] = True
    later = walked[source] & (source > here)
    pointer[num_pixels + here[later]] += num_pixels
    while pointer[num_pixels:].max() >= num_pixels:
        pointer = pointer[pointer]
    return pointer[num_pixels:]


def motion_blur(image: ImageArray, strength: tuple[int, float], draws: Draws) -> ImageArray:
    """A movement in a random direction, at most 45 degrees from the horizontal."""
    return filters.motion_blur(image, *strength, draws.uniform(-45, 45))


def zoom_blur(image: ImageArray, factors: tuple[float, float, float], draws: Draws) -> ImageArray:
    """The mean of the image and of its enlargements; draws nothing."""
    levels = (image / 255.0).astype(np.float32)
    enlarged = [filters.zoom(levels, float(factor)) for factor in np.arange(*factors)]
    return to_bytes((levels + sum(enlarged)) / (len(enlarged) + 1))
