"""Checks that the configs of the methods share."""

import math

from sts_core import ConfigError


def check_positive(**values: float) -> None:
    """Raise unless every value is above zero and finite."""
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ConfigError(
                f"{name} must be positive and finite, got {value!r}: leave it out for the reference's", fields=(name,)
            )


def check_not_negative(**values: float) -> None:
    """Raise unless every value is zero or above, and finite."""
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise ConfigError(
                f"{name} must be zero or positive and finite, got {value!r}: 0 switches it off", fields=(name,)
            )
