"""Learning-rate schedules as pure functions of the step: nothing to save, nothing to restore.

Each returns the factor by which the base learning rate is multiplied at optimizer step k of K (k = 0 .. K-1).
"""

import math
from collections.abc import Sequence
from typing import Literal

from sts_core import ConfigError

RateSchedule = Literal["cosine", "cosine_7_16", "step", "constant"]


def cosine(step: float, total_steps: float) -> float:
    """½(1 + cos(πk/K)): from 1 to 0."""
    return 0.5 * (1.0 + math.cos(math.pi * step / max(total_steps, 1)))


def cosine_7_16(step: float, total_steps: float) -> float:
    """cos(7πk/16K): from 1 to .195, FixMatch's schedule."""
    return math.cos(7.0 * math.pi * step / (16.0 * max(total_steps, 1)))


def step_decay(step: float, milestones: Sequence[float], *, factor: float) -> float:
    """factor^(number of milestones reached)."""
    return factor ** sum(step >= milestone for milestone in milestones)


def linear_warmup(step: float, warmup_steps: float, *, start: float = 0.0) -> float:
    """start + (1 - start)·k/W while k < W, then 1."""
    if step >= warmup_steps:
        return 1.0
    return start + (1.0 - start) * step / warmup_steps


def learning_rate_factor(
    schedule: RateSchedule,
    step: int,
    *,
    total_steps: int,
    warmup_steps: float = 0.0,
    warmup_start: float = 0.0,
    milestones: Sequence[float] = (),
    decay: float = 0.1,
    steps_per_epoch: int | None = None,
) -> float:
    """Warm-up over the first W steps, then `schedule` over what remains: f(k - W, K - W).

    With `steps_per_epoch` the schedule (not the warm-up) moves once per epoch, as MoCo's does. Milestones are steps.
    """
    if step < warmup_steps:
        return linear_warmup(step, warmup_steps, start=warmup_start)
    if steps_per_epoch is not None:
        step -= step % steps_per_epoch
    elapsed, remaining = max(step - warmup_steps, 0.0), total_steps - warmup_steps
    match schedule:
        case "cosine":
            return cosine(elapsed, remaining)
        case "cosine_7_16":
            return cosine_7_16(elapsed, remaining)
        case "step":
            return step_decay(step, milestones, factor=decay)
        case "constant":
            return 1.0
    raise ConfigError(f"schedule must be cosine, cosine_7_16, step or constant, got {schedule!r}")
