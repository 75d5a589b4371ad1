"""Views of one image at a time on the CPU, as loader processes compute them: torch's resize and OpenCV, in place.

Same draws and same results as the batched form in `augment`, up to rounding. Pictures are uint8 [H, W, 3], RGB.
"""

import math
from collections.abc import Sequence

import cv2
import numpy as np
import torch
import torch.nn.functional as F

from sts_methods.augment import GRAY, CropDraws
from sts_methods.blur import blur_taps, half_width
from sts_methods.colour import ORDERS
from sts_methods.reading import ByteImage
from sts_methods.views import CropView, Interpolation

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


def finish_crop_(x: ByteImage, view: CropView, draws: CropDraws, row: int) -> None:
    """Colour jitter, grayscale, blur, solarise and erase one picture, in place, by row `row` of the draws."""
    if draws.jitter.applied[row]:
        jitter_(x, ORDERS[draws.jitter.order[row]].tolist(), draws.jitter.factors[row].tolist())
    if draws.grayscale[row]:
        cv2.cvtColor(cv2.cvtColor(x, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB, dst=x)
    if draws.sigma[row] > 0:
        blur_(x, float(draws.sigma[row]))
    if draws.solarise[row]:
        cv2.LUT(x, _SOLARISE, dst=x)
    if draws.erase[row]:
        side = view.size // 4
        top, left = (draws.corner[row] * (view.size - side + 1)).astype(int)
        x[top : top + side, left : left + side] = GRAY


def jitter_(x: ByteImage, order: list[int], factors: list[float]) -> None:
    """The four colour steps in the given order; 0 brightness, 1 contrast, 2 saturation, 3 hue.

    The first three are linear in a pixel's channels, x <- A·(R, G, B, 1): one pass each.
    """
    for step in order:
        factor = factors[step]
        if step == 3:
            hue_(x, factor)
            continue
        matrix = factor * _IDENTITY + _CUT * _OFFSET
        if step == 2:
            matrix += (1 - factor) * _LUMA
        elif step == 1:
            matrix += (1 - factor) * math.floor(cv2.mean(cv2.cvtColor(x, cv2.COLOR_RGB2GRAY))[0] + 0.5) * _OFFSET
        cv2.transform(x, matrix, dst=x)


def hue_(x: ByteImage, shift: float) -> None:
    """Turn the colour circle of 256 steps by `shift` (1 is a full turn)."""
    hsv = cv2.cvtColor(x, cv2.COLOR_RGB2HSV_FULL)
    turn = np.zeros((hsv.shape[1], 3), dtype=np.uint8)
    turn[:, 0] = int(shift * 255) % 256
    rows = hsv.reshape(hsv.shape[0], -1)
    rows += turn.reshape(-1)  # bytes wrap, whole rows at once: five times faster than the hue channel alone
    cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB_FULL, dst=x)


def blur_(x: ByteImage, sigma: float) -> None:
    """Pillow's Gaussian blur, by the taps of its box blurs."""
    taps = blur_taps(np.array([sigma]), half=half_width(sigma))[0].astype(np.float32)
    cv2.sepFilter2D(x, -1, taps, taps, dst=x, borderType=cv2.BORDER_REPLICATE)
