"""Momentum as a pure function of the step."""

import math
from collections.abc import Callable
from functools import lru_cache

from sts_core.config import check_probability
from sts_core.errors import ConfigError

Schedule = Callable[[int], float]
"""A value for each update, by its index: pure, so that a resumed run continues as it would have."""


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


def warmup_momentum(
    step: int, *, momentum: float, start: int = 0, gamma: float = 1.0, power: float = 2 / 3, minimum: float = 0.0
) -> float:
    """1 − (1 + n/gamma)^−power between `minimum` and `momentum`, where n counts from `start`; 0 up to there.

    The warm-up of timm's ModelEmaV3 (warmup_gamma, warmup_power, update_after_step) and of ema-pytorch (inv_gamma,
    power, update_after_step), whose steps count from 1. power = 2/3 reaches 0.999 at step 31,622, 3/4 at 9,999.
    """
    check_probability("momentum", momentum)
    check_probability("minimum", minimum)
    _check_step(step)
    if gamma <= 0 or power <= 0:
        raise ConfigError(f"gamma and power must be positive, got {gamma} and {power}")
    if step <= start:
        return 0.0
    return max(minimum, min(momentum, 1.0 - math.pow(1.0 + (step - start) / gamma, -power)))


def half_life_momentum(step: int, *, half_life: float, ramp_up: float | None = None) -> float:
    """2^(−1/half_life): after `half_life` updates a weight of the student counts half as much as at first.

    With `ramp_up`, the half-life is at most that multiple of the steps so far (EDM: 0.05). A half-life in images is
    divided by the batch size.
    """
    _check_step(step)
    if half_life < 0 or (ramp_up is not None and ramp_up < 0):
        raise ConfigError(f"half_life and ramp_up must not be negative, got {half_life} and {ramp_up}")
    updates = half_life if ramp_up is None else min(half_life, ramp_up * step)
    return math.pow(0.5, 1.0 / updates) if updates else 0.0


def interval_momentum(step: int, *, momentum: float, interval: int = 1, start: int = 0) -> float:
    """`momentum` at every `interval`-th step and 1, which leaves the teacher as it is, between; 0 until `start`.

    ema-pytorch's update_every and update_after_step. A step at momentum 1 costs next to nothing; buffers that are
    copied are copied then, too.
    """
    check_probability("momentum", momentum)
    _check_step(step)
    if interval < 1:
        raise ConfigError(f"interval must be at least 1, got {interval}")
    if step % interval:
        return 1.0
    return momentum if step > start else 0.0


@lru_cache(maxsize=64)
def power_exponent(length: float) -> float:
    """γ of the profile τ^γ on 0 … t whose standard deviation is `length`·t: √(γ+1) / ((γ+2)·√(γ+3)) = length (EDM2)."""
    if not 0.0 < length < 12**-0.5:
        raise ConfigError(f"length must be a fraction of the training above 0 and below 0.288, got {length}")
    low, high = 0.0, 1e9
    for _ in range(200):  # the left side falls as γ grows
        middle = (low + high) / 2
        wide = math.sqrt(middle + 1) / ((middle + 2) * math.sqrt(middle + 3)) > length
        low, high = (middle, high) if wide else (low, middle)
    return (low + high) / 2


def power_momentum(step: int, *, length: float) -> float:
    """(1 − 1/(step + 1))^(γ+1): an average over the last `length` of the training, however long it lasts (EDM2)."""
    _check_step(step)
    return math.pow(1.0 - 1.0 / (step + 1), power_exponent(length) + 1.0)


def _check_step(step: int) -> None:
    if step < 0:
        raise ConfigError(f"step must not be negative, got {step}: count optimizer steps from 0")
