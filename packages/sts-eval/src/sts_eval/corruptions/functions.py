"""One corrupted image: a pure function of the clean image, the corruption, the severity and a key.

The arithmetic and the draws are those of the release's scripts with numpy's generator seeded by the key, so that all
corruptions but frost agree with the release's on the same draws; frost has textures of its own.
"""

import threading
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from sts_core import ConfigError
from sts_eval.corruptions.benchmark import check_corruptions, check_severities
from sts_eval.corruptions.folders import ImageArray
from sts_eval.corruptions.pixels import blur, digital, noise, weather
from sts_eval.corruptions.pixels.strengths import SIDES, TABLES, table_for

SMALLEST_SIDE = 32
GENERATOR = "sts-eval 2"
"""Names the arithmetic below. Results and caches carry it: raise the number with every change of the pixels."""

FUNCTIONS: dict[str, Callable[..., ImageArray]] = {
    function.__name__: function
    for function in (
        *(noise.gaussian_noise, noise.shot_noise, noise.impulse_noise, noise.speckle_noise),
        *(blur.defocus_blur, blur.glass_blur, blur.motion_blur, blur.zoom_blur, blur.gaussian_blur),
        *(weather.snow, weather.frost, weather.fog, weather.spatter),
        *(digital.brightness, digital.contrast, digital.elastic_transform, digital.pixelate),
        *(digital.jpeg_compression, digital.saturate),
    )
}


class _Draws(threading.local):
    """A generator per thread, since making one takes fifty times as long as seeding it."""

    def __init__(self) -> None:
        self.generator = np.random.RandomState()

    def seeded(self, key: int) -> np.random.RandomState:
        self.generator.seed(key)
        return self.generator


_draws = _Draws()


def corruption_key(seed: int, image: str, corruption: str, severity: int) -> int:
    """crc32 of (seed, image name, corruption, severity): the same in every process and on every machine."""
    return zlib.crc32(f"{seed}\t{image}\t{corruption}\t{severity}".encode())


def corrupt_image(image: ImageArray, corruption: str, severity: int, *, key: int) -> ImageArray:
    """The corrupted copy of a uint8 image [H, W, 3]; equal arguments give equal images.

    Images with a side below 64 px are corrupted as CIFAR-10-C's were, larger ones as ImageNet-C's.
    """
    check_corruptions([corruption])
    check_severities([severity])
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or min(image.shape[:2]) < SMALLEST_SIDE:
        raise ConfigError(
            f"an image to corrupt must be uint8 [height, width, 3] of at least {SMALLEST_SIDE} px, "
            f"got {image.dtype} {image.shape}: resize or convert it"
        )
    table = table_for(min(image.shape[:2]))
    strength: Any = TABLES[table][corruption][severity - 1]
    function = FUNCTIONS[corruption]
    if corruption == "elastic_transform":  # its lengths grow with the image
        strength = tuple(length * min(image.shape[:2]) / SIDES[table] for length in strength)
    if corruption == "frost":  # CIFAR-10-C shrinks its textures to a fifth, without smoothing
        function = partial(weather.frost, step=5 if table == "CIFAR-10-C" else 1)
    return function(image, strength, _draws.seeded(key))
