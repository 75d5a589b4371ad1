"""Textures of frost, made instead of read: those of the release are other people's photographs.

A texture is a random field with the spectrum of the photographs' brightness, coloured so that each channel has the
photographs' distribution of levels. It is as bright, as varied and as coarse as theirs, without the crystals' shapes.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sts_eval.corruptions.folders import ImageArray
from sts_eval.corruptions.pixels.filters import Draws

NORMAL_QUANTILES = np.array([-3.5, -1.645, -0.674, 0.0, 0.674, 1.645, 3.5])
"""Where the normal distribution has its 0, 5, 25, 50, 75, 95 and 100 % quantiles (the outermost are cut off)."""


class Pane(NamedTuple):
    """What was measured on one photograph of the release."""

    levels: tuple[tuple[int, ...], ...]
    """Of red, green and blue: the quantiles named above."""
    slope: float
    """The amplitude of a wave falls with frequency to this power."""


PANES = (
    Pane(
        levels=(
            (15, 40, 57, 74, 95, 127, 201),
            (99, 123, 137, 148, 160, 178, 230),
            (115, 141, 155, 166, 176, 191, 235),
        ),
        slope=1.2,
    ),
    Pane(
        levels=(
            (55, 162, 189, 204, 216, 230, 253),
            (56, 165, 193, 209, 221, 235, 255),
            (60, 172, 202, 218, 231, 244, 255),
        ),
        slope=1.0,
    ),
    Pane(
        levels=(
            (15, 91, 120, 138, 155, 183, 251),
            (24, 105, 135, 153, 170, 199, 255),
            (31, 115, 147, 165, 183, 214, 255),
        ),
        slope=0.85,
    ),
    Pane(
        levels=(
            (14, 48, 79, 107, 140, 195, 255),
            (25, 60, 91, 119, 151, 203, 255),
            (36, 72, 104, 131, 161, 211, 255),
        ),
        slope=0.85,
    ),
)
DRAWN = (0, 1, 1, 2, 3)
"""The release draws one of five photographs, the second and third of which look alike; its sixth is never drawn."""


SIDE = 512
"""Textures are squares of this side whose borders fit together."""


def frost_texture(height: int, width: int, step: int, draws: Draws) -> ImageArray:
    """A random cut of a random texture, [height, width, 3]: of a larger one every `step`-th pixel."""
    texture = _texture(DRAWN[draws.randint(5)])
    top, left = draws.randint(0, SIDE, size=2)
    rows, columns = ((start + step * np.arange(length)) % SIDE for start, length in ((top, height), (left, width)))
    return np.asarray(texture[rows[:, None], columns])


@cache
def _texture(number: int) -> ImageArray:
    """The texture of one pane: always the same, as a photograph would be."""
    pane = PANES[number]
    field = _field(pane.slope, np.random.RandomState(number))
    levels = np.stack([np.interp(field, NORMAL_QUANTILES, levels) for levels in pane.levels], axis=-1)
    return np.asarray(levels.astype(np.uint8))


def _field(slope: float, draws: Draws) -> npt.NDArray[np.float64]:
    """A normal random field on a torus, of mean 0 and deviation 1, with waves of amplitude 1/frequency^slope."""
    frequency = np.hypot(np.fft.fftfreq(SIDE)[:, None], np.fft.rfftfreq(SIDE))
    frequency[0, 0] = np.inf  # no constant
    field = np.fft.irfft2(np.fft.rfft2(draws.normal(size=(SIDE, SIDE))) * frequency**-slope, s=(SIDE, SIDE))
    return np.asarray(field / field.std())
