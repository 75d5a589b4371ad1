"""What ImageNet-C is, as values: its corruptions, their groups, their published strengths, AlexNet's errors on them.

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

ELASTIC_SIDE = 224
"""The image side for which the lengths of `elastic_transform` below are given."""

SEVERITY_PARAMETERS: dict[str, tuple[object, ...]] = {
    "gaussian_noise": (0.08, 0.12, 0.18, 0.26, 0.38),  # standard deviation
    "shot_noise": (60, 25, 12, 5, 3),  # photons at full brightness
    "impulse_noise": (0.03, 0.06, 0.09, 0.17, 0.27),  # fraction of pixels
    "defocus_blur": ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),  # radius, alias blur
    "glass_blur": ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),  # sigma, max shift, rounds
    "motion_blur": ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),  # radius, sigma
    "zoom_blur": ((1, 1.11, 0.01), (1, 1.16, 0.01), (1, 1.21, 0.02), (1, 1.26, 0.02), (1, 1.31, 0.03)),  # arange
    "snow": (
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ),  # flake mean, deviation, zoom, threshold, blur radius, blur sigma, weight of the image
    "frost": ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),  # weight of the image, of the frost
    "fog": ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),  # thickness, decay of the plasma fractal
    "brightness": (0.1, 0.2, 0.3, 0.4, 0.5),  # added to V of HSV
    "contrast": (0.4, 0.3, 0.2, 0.1, 0.05),  # factor
    "elastic_transform": (
        (244 * 2, 244 * 0.7, 244 * 0.1),
        (244 * 2, 244 * 0.08, 244 * 0.2),
        (244 * 0.05, 244 * 0.01, 244 * 0.02),
        (244 * 0.07, 244 * 0.01, 244 * 0.02),
        (244 * 0.12, 244 * 0.01, 244 * 0.02),
    ),  # displacement, its smoothing sigma, affine shift, in pixels (244 is the release's own number)
    "pixelate": (0.6, 0.5, 0.4, 0.3, 0.25),  # scale
    "jpeg_compression": (25, 18, 15, 10, 7),  # quality
    "speckle_noise": (0.15, 0.2, 0.35, 0.45, 0.6),  # standard deviation, multiplicative
    "gaussian_blur": (1, 2, 3, 4, 6),  # sigma
    "spatter": (
        (0.65, 0.3, 4, 0.69, 0.6, 0),
        (0.65, 0.3, 3, 0.68, 0.6, 0),
        (0.65, 0.3, 2, 0.68, 0.5, 0),
        (0.65, 0.3, 1, 0.65, 1.5, 1),
        (0.67, 0.4, 1, 0.65, 1.5, 1),
    ),  # mean, deviation, sigma, threshold, strength, water (0) or mud (1)
    "saturate": ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),  # factor and offset of S of HSV
}
"""ImageNet-C/create_c/make_imagenet_c.py, one value per severity."""


def check_corruptions(names: Sequence[str]) -> tuple[str, ...]:
    """Return `names` as a tuple, or raise if one is unknown, repeated or none is given."""
    if not names:
        raise ConfigError("corruptions must name at least one corruption, got none: leave it out for all of them")
    for name in names:
        if name not in ALL_CORRUPTIONS:
            raise ConfigError(
                f"a corruption must be one of {', '.join(ALL_CORRUPTIONS)}, got {name!r}: correct the name"
            )
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
