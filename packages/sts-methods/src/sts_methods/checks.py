"""Checks that the configs of the methods share."""

from sts_core.errors import ConfigError


def check_positive(**values: float) -> None:
    """Raise unless every value is above zero."""
    for name, value in values.items():
        if not value > 0:
            raise ConfigError(f"{name} must be positive, got {value!r}: leave it out for the reference's value")


def check_not_negative(**values: float) -> None:
    """Raise unless every value is zero or above."""
    for name, value in values.items():
        if not value >= 0:
            raise ConfigError(f"{name} must not be negative, got {value!r}: 0 switches it off")
