"""One corrupted image: a pure function of the clean image, the corruption, the severity and a key.

The work is done by the optional library imagecorruptions-imaug, which has the published strengths built in, with two
exceptions that are made good here. It draws from numpy's global generator, and from unseeded ones for impulse_noise
and glass_blur: we seed all of them with the key and leave the global generator as it was. And its elastic_transform is
another one than the release's (no affine part, other amplitudes): that corruption is implemented below.
"""

import importlib.metadata
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from sts_core import ConfigError, StsError
from sts_eval.corruptions.benchmark import ELASTIC_SIDE, SEVERITY_PARAMETERS, check_corruptions, check_severities
from sts_eval.corruptions.folders import ImageArray

SMALLEST_SIDE = 32
LIBRARY = "imagecorruptions-imaug"
SEED_ARGUMENT = ("impulse_noise", "glass_blur")
"""Corruptions whose draws the library does not take from numpy's global generator."""

_global_generator = threading.Lock()


class MissingLibraryError(StsError, ImportError):
    """An optional library is needed and not installed."""


def library_version() -> str:
    """The version of the corruption library, or an error that says how to get it."""
    try:
        return importlib.metadata.version(LIBRARY)
    except importlib.metadata.PackageNotFoundError as error:
        raise MissingLibraryError(
            f"generating corruptions needs {LIBRARY}, which is not installed: "
            "install sts-eval[corruptions] or read the released images instead"
        ) from error


def corruption_key(seed: int, image: str, corruption: str, severity: int) -> int:
    """crc32 of (seed, image name, corruption, severity): the same in every process and on every machine."""
    return zlib.crc32(f"{seed}\t{image}\t{corruption}\t{severity}".encode())


@contextmanager
def _seeded_global_generator(key: int) -> Iterator[None]:
    with _global_generator:
        state = np.random.get_state()
        np.random.seed(key)
        try:
            yield
        finally:
            np.random.set_state(state)


def corrupt_image(image: ImageArray, corruption: str, severity: int, *, key: int) -> ImageArray:
    """The corrupted copy of a uint8 image [H, W, 3]; equal arguments give equal images."""
    check_corruptions([corruption])
    check_severities([severity])
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or min(image.shape[:2]) < SMALLEST_SIDE:
        raise ConfigError(
            f"an image to corrupt must be uint8 [height, width, 3] of at least {SMALLEST_SIDE} px, "
            f"got {image.dtype} {image.shape}: resize or convert it"
        )
    library_version()
    if corruption == "elastic_transform":
        return elastic_transform(image, severity, key=key)
    import imagecorruptions

    seed: dict[str, Any] = {"seed": key} if corruption in SEED_ARGUMENT else {}
    # The library divides by the highest drop of spatter; one layer in 70 has none at 32 px, and changes nothing.
    with _seeded_global_generator(key), np.errstate(invalid="raise" if corruption == "spatter" else None):
        try:
            result = imagecorruptions.corrupt(np.ascontiguousarray(image), severity, corruption, **seed)
        except FloatingPointError:
            if corruption != "spatter":
                raise
            return image.copy()
    return cast(ImageArray, result)


@lru_cache(maxsize=32)
def _blur_matrix(side: int, sigma: float) -> npt.NDArray[np.float64]:
    """The Gaussian filter along one axis (mirrored borders, cut at 3 sigma) as a matrix.

    The release smooths with sigma up to 171 px on 224 px: 1025 taps a pixel, against 224 as a matrix product.
    """
    from scipy.ndimage import gaussian_filter1d

    matrix: npt.NDArray[np.float64] = gaussian_filter1d(np.eye(side), sigma, axis=0, mode="reflect", truncate=3)
    return matrix


def elastic_transform(image: ImageArray, severity: int, *, key: int) -> ImageArray:
    """ImageNet-C's elastic_transform: a random affine map, then a smooth random displacement of every pixel.

    The three points of the affine map move by U(-c, c); the displacement is a·G_σ * U(-1, 1) in x and in y. The
    published lengths (a, σ, c) hold for 224 px and grow with the image's side.
    """
    from scipy.ndimage import map_coordinates

    height, width = image.shape[:2]
    lengths = np.array(SEVERITY_PARAMETERS["elastic_transform"][severity - 1], dtype=np.float64)
    amplitude, sigma, affine_shift = lengths * min(height, width) / ELASTIC_SIDE
    generator = np.random.default_rng(key)

    moved = _random_affine(image.astype(np.float32), affine_shift, generator)
    noise = generator.uniform(-1.0, 1.0, size=(2, height, width))
    rows, columns = _blur_matrix(height, sigma), _blur_matrix(width, sigma)
    shift = amplitude * (rows @ noise @ columns.T)  # [2, H, W]: dy, dx
    positions = shift + np.mgrid[:height, :width]
    channels = [map_coordinates(channel, positions, order=1, mode="reflect") for channel in np.moveaxis(moved, 2, 0)]
    result: ImageArray = np.clip(np.stack(channels, axis=-1), 0, 255).astype(np.uint8)
    return result


def _random_affine(
    image: npt.NDArray[np.float32], shift: float, generator: np.random.Generator
) -> npt.NDArray[np.float32]:
    """Move three corners of the central square, two thirds of the side wide, by up to `shift` pixels each."""
    import cv2

    size = np.array(image.shape[:2], dtype=np.float32)
    center, reach = size // 2, min(image.shape[:2]) // 3
    corners = center + reach * np.array([[1, 1], [1, -1], [-1, -1]], dtype=np.float32)
    targets = corners + generator.uniform(-shift, shift, size=corners.shape).astype(np.float32)
    matrix = cv2.getAffineTransform(corners, targets)
    moved = cv2.warpAffine(image, matrix, image.shape[1::-1], borderMode=cv2.BORDER_REFLECT_101)
    return cast("npt.NDArray[np.float32]", moved)
