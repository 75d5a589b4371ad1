"""Weather: snow, frost, fog, and spatter of water or mud."""

import cv2
import numpy as np

from sts_eval.corruptions.folders import ImageArray
from sts_eval.corruptions.pixels import filters
from sts_eval.corruptions.pixels.filters import Draws, Levels, to_bytes
from sts_eval.corruptions.pixels.frost import frost_texture

WATER = np.array([175, 238, 238], dtype=np.float32) / 255  # pale turquoise
MUD = np.array([63, 42, 20], dtype=np.float32) / 255


def snow(image: ImageArray, strength: tuple[float, float, float, float, int, float, float], draws: Draws) -> ImageArray:
    """Flakes that fall in streaks, from above and, turned round, from below, over a whitened image."""
    mean, deviation, size, threshold, radius, sigma, weight = strength
    flakes = filters.zoom(draws.normal(size=image.shape[:2], loc=mean, scale=deviation), size)
    flakes = np.where(flakes < threshold, 0, flakes)
    streaks = filters.motion_blur(to_bytes(flakes), radius, sigma, draws.uniform(-135, -45))[..., None] / 255.0
    levels = image.astype(np.float32) / 255
    gray = cv2.cvtColor(levels, cv2.COLOR_RGB2GRAY)[..., None]
    white = weight * levels + (1 - weight) * np.maximum(levels, gray * 1.5 + 0.5)
    return to_bytes(white + streaks + streaks[::-1, ::-1])


def frost(image: ImageArray, strength: tuple[float, float], draws: Draws, *, step: int) -> ImageArray:
    """The image behind a frosted pane, of whose texture every `step`-th pixel is seen."""
    of_image, of_frost = strength
    height, width, _ = image.shape
    mixed: Levels = of_image * image + of_frost * frost_texture(height, width, step, draws)
    result: ImageArray = np.minimum(mixed, 255).astype(np.uint8)
    return result


def fog(image: ImageArray, strength: tuple[float, float], draws: Draws) -> ImageArray:
    """Banks of fog in front of the image."""
    thickness, decay = strength
    height, width = image.shape[:2]
    side = 1 << (max(height, width) - 1).bit_length()  # the smallest power of two that covers the image
    levels = image / 255.0
    brightest = levels.max()
    levels += thickness * plasma(side, decay, draws)[:height, :width, None]
    return to_bytes(levels * brightest / (brightest + thickness))


def plasma(side: int, decay: float, draws: Draws) -> Levels:
    """A random landscape in [0, 1] by the diamond-square algorithm on a torus; `side` is a power of two."""
    land = np.zeros((side, side))
    step, wobble = side, 100.0

    def midpoints(total: Levels) -> Levels:
        return total / 4 + wobble * draws.uniform(-wobble, wobble, total.shape)

    while step >= 2:
        half = step // 2
        corners = land[::step, ::step]
        below, beside = corners + np.roll(corners, -1, axis=0), corners + np.roll(corners, -1, axis=1)
        centres = midpoints(below + np.roll(below, -1, axis=1))
        land[half::step, half::step] = centres
        land[::step, half::step] = midpoints(centres + np.roll(centres, 1, axis=0) + beside)
        land[half::step, ::step] = midpoints(centres + np.roll(centres, 1, axis=1) + below)
        step, wobble = half, wobble / decay
    land -= land.min()
    return np.asarray(land / land.max())


def spatter(image: ImageArray, strength: tuple[float, float, float, float, float, int], draws: Draws) -> ImageArray:
    """Drops of water, or splashes of mud at the upper severities."""
    mean, deviation, sigma, threshold, last, mud = strength
    liquid = filters.gaussian(draws.normal(size=image.shape[:2], loc=mean, scale=deviation), sigma)
    liquid[liquid < threshold] = 0
    levels = image.astype(np.float32) / 255
    if mud:
        cover = filters.gaussian((liquid > threshold).astype(np.float32), last)
        cover[cover < 0.8] = 0
        return to_bytes(levels * (1 - cover[..., None]) + MUD * cover[..., None])
    drops = _drops((liquid * 255).astype(np.uint8))
    highest = drops.max()
    if highest == 0:  # the release divides by zero here; one layer in 70 has no drop at 32 px
        return image.copy()
    return to_bytes(levels + (drops / highest * last)[..., None] * WATER)


def _drops(liquid: ImageArray) -> Levels:
    """Light and shade of drops: brightest along their edges, on the side of the light."""
    distance = cv2.distanceTransform(255 - cv2.Canny(liquid, 50, 150), cv2.DIST_L2, 5)
    near = cv2.equalizeHist(cv2.blur(np.minimum(distance, 20), (3, 3)).astype(np.uint8))
    lit = cv2.filter2D(near, cv2.CV_8U, np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]))
    return np.asarray(liquid * cv2.blur(lit, (3, 3)).astype(np.float32))
