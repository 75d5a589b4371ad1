"""What an STS teacher is for a given student: the moving average TMA(m_eff), plus noise of a known size.

With a = 1 − m, q = 1 − p, μ the teacher's mean over all masks and d = θˢ − μ before an update:

    μ' = μ + q·a·d                              exactly TMA(m_eff), m_eff = 1 − q·a
    V' = (1 − 2qa + qa²)·V + q(1 − q)·a²·d²     variance of a unit around μ

for every granularity: it decides which weights share their noise, not how large it is. Derived in docs/theory.md.
"""

import math

from sts_core.config import SmoothingConfig


def noise_std(config: SmoothingConfig) -> float:
    """√(p(1 − m)/(1 + m)): where std/|d| of a unit settles while the student moves steadily.

    .0593 for the paper's BYOL (m = .99, p = .7), .0158 for its MoCo and FixMatch (.999, .5), .95 for SE with p = .9.
    0 for a frozen teacher (p = 1), which no mask moves.
    """
    m, p = config.momentum, config.preserve_probability
    return 0.0 if p == 1.0 else math.sqrt(p * (1.0 - m) / (1.0 + m))


def next_noise_variance(
    variance: float, squared_distance: float, config: SmoothingConfig, *, momentum: float | None = None
) -> float:
    """V after an update, from V and d² before it; `momentum` takes the place of the config's, as in a schedule.

    Both may be sums over many weights. Start at 0, the variance of a teacher that is a copy of its student, and take
    d² from the student and a teacher by `config.matched_moving_average()`, which is μ.
    """
    a = 1.0 - (config.momentum if momentum is None else momentum)
    q = 1.0 - config.preserve_probability
    return (1.0 - 2.0 * q * a + q * a * a) * variance + q * (1.0 - q) * a * a * squared_distance
