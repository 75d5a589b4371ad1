"""What ImageNet-C is, as values: its corruptions, their groups, AlexNet's errors on them.

Everything here was read from hendrycks/robustness at 8190fe3 or from the spreadsheet that its README names for the mCE.
"""

from collections.abc import Sequence

from sts_core import ConfigError

SEVERITIES = (1, 2, 3, 4, 5)

GROUPS: dict[str, tuple[str, ...]] = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
}
"""The 15 corruptions of the benchmark, by the archive that holds them (noise.tar, blur.tar, ...)."""

MAIN_CORRUPTIONS: tuple[str, ...] = tuple(name for names in GROUPS.values() for name in names)
"""15 corruptions x 5 severities: the 75 cells of the paper's mean."""

EXTRA_CORRUPTIONS = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
"""extra.tar: meant for validation, so they stay out of the mean and of the mCE."""

ALL_CORRUPTIONS = MAIN_CORRUPTIONS + EXTRA_CORRUPTIONS

ALEXNET_ERRORS: dict[str, float] = {
    "gaussian_noise": 0.886428,
    "shot_noise": 0.894468,
    "impulse_noise": 0.922640,
    "defocus_blur": 0.819880,
    "glass_blur": 0.826268,
    "motion_blur": 0.785948,
    "zoom_blur": 0.798360,
    "snow": 0.866816,
    "frost": 0.826572,
    "fog": 0.819324,
    "brightness": 0.564592,
    "contrast": 0.853204,
    "elastic_transform": 0.646056,
    "pixelate": 0.717840,
    "jpeg_compression": 0.606500,
}
"""AlexNet's top-1 error on ImageNet-C, mean over the five severities: the denominators of the mCE."""


def check_corruptions(names: Sequence[str]) -> tuple[str, ...]:
    """Return `names` as a tuple, or raise if one is unknown, repeated or none is given."""
    if not names:
        raise ConfigError("corruptions must name at least one corruption, got none: leave it out for all of them")
    for name in names:
        if name not in ALL_CORRUPTIONS:
            raise ConfigError(f"a corruption must be one of {', '.join(ALL_CORRUPTIONS)}, got {name!r}")
    if len(set(names)) != len(names):
        raise ConfigError(f"corruptions must differ, got {', '.join(names)}: name each of them once")
    return tuple(names)


def check_severities(severities: Sequence[int]) -> tuple[int, ...]:
    """Return `severities` as a sorted tuple, or raise if one is outside 1 to 5."""
    for severity in severities:
        if severity not in SEVERITIES:
            raise ConfigError(f"a severity must be an integer from 1 to 5, got {severity!r}")
    if not severities:
        raise ConfigError("severities must name at least one of 1 to 5, got none: leave it out for all five")
    return tuple(sorted(set(severities)))
