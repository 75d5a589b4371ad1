"""Momentum as a pure function of the step."""

import math

from sts_core.config import check_probability
from sts_core.errors import ConfigError


def constant_momentum(step: int, *, momentum: float) -> float:
    """m at every step: MoCo's and FixMatch's schedule."""
    _check_step(step)
    return check_probability("momentum", momentum)


def cosine_momentum(step: int, *, total_steps: int, start: float, end: float = 1.0) -> float:
    """end − (end − start)·(1 + cos(π·step / total_steps)) / 2: BYOL's schedule. Stays at `end` after the last step."""
    check_probability("start", start)
    check_probability("end", end)
    _check_step(step)
    if total_steps < 1:
        raise ConfigError(f"total_steps must be at least 1, got {total_steps}: pass the length of the training")
    progress = min(step, total_steps) / total_steps
    return end - (end - start) * (1.0 + math.cos(math.pi * progress)) / 2.0


def _check_step(step: int) -> None:
    if step < 0:
        raise ConfigError(f"step must not be negative, got {step}: count optimizer steps from 0")
