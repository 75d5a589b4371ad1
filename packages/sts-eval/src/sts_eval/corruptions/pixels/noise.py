"""Noise: each of the three values of a pixel is disturbed for itself."""

import numpy as np

from sts_eval.corruptions.folders import ImageArray
from sts_eval.corruptions.pixels.filters import Draws, to_bytes


def gaussian_noise(image: ImageArray, deviation: float, draws: Draws) -> ImageArray:
    """Add normal noise."""
    return to_bytes(image / 255.0 + draws.normal(size=image.shape, scale=deviation))


def shot_noise(image: ImageArray, photons: float, draws: Draws) -> ImageArray:
    """Count photons: Poisson noise."""
    return to_bytes(draws.poisson(image / 255.0 * photons) / float(photons))


def impulse_noise(image: ImageArray, fraction: float, draws: Draws) -> ImageArray:
    """Replace a fraction of the values by black or white, with even chances."""
    hit = draws.random_sample(image.shape) < fraction
    white = draws.random_sample(image.shape) < 0.5
    return np.where(hit, np.where(white, np.uint8(255), np.uint8(0)), image)


def speckle_noise(image: ImageArray, deviation: float, draws: Draws) -> ImageArray:
    """Add normal noise in proportion to the brightness."""
    levels = image / 255.0
    return to_bytes(levels + levels * draws.normal(size=image.shape, scale=deviation))
