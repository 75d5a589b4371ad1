"""Views on the CPU, picture by picture in its cache: torch's resize and OpenCV, in place.

Same draws and same results as the batched form in `augment`, up to rounding. Pictures are uint8 [H, W, 3], RGB.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import cv2
import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from sts_methods.draws import ByteImage, FloatArray
from sts_methods.views.batched import GRAY, CropDraws
from sts_methods.views.blur import NUM_BOXES, blur_taps, box_radius, half_width
from sts_methods.views.colour import ORDERS
from sts_methods.views.specs import CropView, Interpolation

SingleArray = npt.NDArray[np.float32]

# Pillow cuts results to whole numbers where OpenCV rounds: shift by just under a half.
_CUT = -0.499
_IDENTITY = np.hstack([np.eye(3), np.zeros((3, 1))]).astype(np.float32)
_LUMA = np.array([[0.299, 0.587, 0.114, 0.0]] * 3, dtype=np.float32)
_OFFSET = np.array([[0.0, 0.0, 0.0, 1.0]] * 3, dtype=np.float32)
_SOLARISE = np.where(np.arange(256) < 128, np.arange(256), 255 - np.arange(256)).astype(np.uint8)


def crop_resize_into(
    out: ByteImage, image: ByteImage, box: Sequence[int], flip: bool, interpolation: Interpolation
) -> None:
    """Cut a (top, left, height, width) box out of `image`, resize it, antialiased, to fill `out`, and mirror it."""
    top, left, height, width = box
    pixels = torch.from_numpy(image)[None].permute(0, 3, 1, 2)[:, :, top : top + height, left : left + width]
    resized = F.interpolate(pixels, out.shape[:2], mode=interpolation, antialias=True)[0].permute(1, 2, 0).numpy()
    if flip:
        cv2.flip(resized, 1, dst=out)
    else:
        np.copyto(out, resized)


def resize_centre(image: ByteImage, *, size: int, margin: float = 1.0) -> ByteImage:
    """Resize so that the shorter side is `margin`·size, then take the central square of `size` pixels.

    A margin of 256/224 is the usual evaluation transform (Resize(256), CenterCrop(224)).
    """
    height, width = image.shape[:2]
    short = round(size * margin)
    # torchvision, _compute_resized_output_size: the longer side is cut to a whole number.
    new = (int(short * height / width), short) if height > width else (short, int(short * width / height))
    pixels = torch.from_numpy(image)[None].permute(0, 3, 1, 2)
    resized = F.interpolate(pixels, new, mode="bilinear", antialias=True)[0].permute(1, 2, 0).numpy()
    top, left = round((new[0] - size) / 2), round((new[1] - size) / 2)
    return np.ascontiguousarray(resized[top : top + size, left : left + size])


def finish_crops_(pictures: ByteImage, view: CropView, draws: CropDraws) -> None:
    """Colour jitter, grayscale, blur, solarise and erase each of [N, S, S, 3], in place.

    All that does not depend on the pixels is computed for the whole group first: at 32 px numpy's overhead for a single
    picture would otherwise cost more than OpenCV's work.
    """
    orders = [[s for s in order if s in draws.jitter.active] for order in ORDERS[draws.jitter.order].tolist()]
    matrices = colour_matrices(draws.jitter.factors)
    turns = np.trunc(draws.jitter.factors[:, 3] * 255).astype(np.int64) % 256
    taps = blur_taps(draws.sigma, half=half_width(view.blur_sigma[1])).astype(np.float32)
    radii = np.ceil(box_radius(draws.sigma)).astype(int).tolist()
    jitter, gray, solarise, erase = (
        mask.tolist() for mask in (draws.jitter.applied, draws.grayscale, draws.solarise, draws.erase)
    )
    for row, x in enumerate(pictures):
        if jitter[row] and view.colours == "tensorflow":
            tensorflow_jitter_(x, orders[row], draws.jitter.factors[row])
        elif jitter[row]:
            jitter_(x, orders[row], matrices[row], int(turns[row]))
        if gray[row]:
            cv2.cvtColor(cv2.cvtColor(x, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB, dst=x)
        if radii[row]:
            blur_(x, taps[row], reach=NUM_BOXES * radii[row])
        if solarise[row]:
            cv2.LUT(x, _SOLARISE, dst=x)
        if erase[row]:
            erase_(x, draws.corner[row])


def colour_matrices(factors: FloatArray) -> FloatArray:
    """Brightness, contrast and saturation as x <- A·(R, G, B, 1): float32 [N, 3, 3, 4].

    Brightness f·x and saturation L + f·(x − L) are complete; contrast μ + f·(x − μ) lacks its offset (1 − f)·μ.
    OpenCV rounds coefficients to 1/1024. Those of saturation are rounded here, so that each row still sums to 1 and a
    gray pixel stays as it is.
    """
    f = factors[:, :3, None, None].astype(np.float32)
    matrices = f * _IDENTITY + _CUT * _OFFSET
    luma = np.round((1 - f[:, 2]) * _LUMA * 1024) / 1024
    matrices[:, 2] = luma + (1 - luma.sum(axis=2, keepdims=True)) * _IDENTITY + _CUT * _OFFSET
    return matrices


def jitter_(x: ByteImage, order: Sequence[int], matrices: FloatArray, turn: int) -> None:
    """The four colour steps in the given order: 0 brightness, 1 contrast, 2 saturation, 3 hue."""
    for step in order:
        if step == 3:
            hue_(x, turn)
            continue
        matrix = matrices[step]
        if step == 1:
            mean = math.floor(cv2.mean(cv2.cvtColor(x, cv2.COLOR_RGB2GRAY))[0] + 0.5)
            matrix = matrix + (1 - matrix[0, 0]) * mean * _OFFSET
        cv2.transform(x, matrix, dst=x)


def tensorflow_jitter_(x: ByteImage, order: Sequence[int], factors: FloatArray) -> None:
    """The same steps as `colour.tensorflow_tone` and `tensorflow_hue`, in float32 and rounded once."""
    y: SingleArray = x.astype(np.float32)
    for step in order:
        factor = float(factors[step])
        if step == 0:
            y += 255 * (factor - 1)
        elif step == 1:
            y = cv2.transform(y, factor * _IDENTITY[:, :3]) + (1 - factor) * np.array(cv2.mean(y)[:3], np.float32)
        else:
            y = _in_hsv(y, step, factor)
        np.clip(y, 0, 255, out=y)
    np.copyto(x, np.rint(y), casting="unsafe")


def _in_hsv(y: SingleArray, step: int, factor: float) -> SingleArray:
    """Saturation times `factor` (step 2), or hue plus `factor` of a full turn (step 3)."""
    hsv = cv2.cvtColor(y, cv2.COLOR_RGB2HSV)  # hue in degrees, saturation in [0, 1]
    if step == 2:
        hsv[:, :, 1] = np.minimum(hsv[:, :, 1] * factor, 1)
    else:
        hsv[:, :, 0] = (hsv[:, :, 0] + 360 * factor) % 360
    return cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)  # type: ignore[no-any-return]


def hue_(x: ByteImage, turn: int) -> None:
    """Turn the colour circle by `turn` of 256 steps."""
    hsv = cv2.cvtColor(x, cv2.COLOR_RGB2HSV_FULL)
    rows = hsv.reshape(hsv.shape[0], -1)
    rows += _turns(hsv.shape[1])[turn]  # bytes wrap, whole rows at once: five times faster than the hue channel alone
    cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB_FULL, dst=x)


@lru_cache(maxsize=4)
def _turns(width: int) -> ByteImage:
    """Row k is (k, 0, 0) for each of `width` pixels."""
    table = np.zeros((256, width, 3), dtype=np.uint8)
    table[:, :, 0] = np.arange(256)[:, None]
    return table.reshape(256, -1)


def blur_(x: ByteImage, taps: FloatArray, *, reach: int) -> None:
    """Pillow's Gaussian blur: the middle `reach` taps on either side, which are those that are not zero."""
    middle = len(taps) // 2
    kernel = taps[middle - reach : middle + reach + 1]
    cv2.sepFilter2D(x, -1, kernel, kernel, dst=x, borderType=cv2.BORDER_REPLICATE)


def erase_(x: ByteImage, corner: FloatArray) -> None:
    """Paint a gray square of a quarter of the side."""
    side = x.shape[0] // 4
    top, left = (corner * (x.shape[0] - side + 1)).astype(int)
    x[top : top + side, left : left + side] = GRAY
