"""Means over seeds with Student's t-interval, from the standard library alone."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev, variance

from sts_core import ConfigError


@dataclass(frozen=True)
class Estimate:
    """A mean and, from two values on, the interval that holds the true mean with the asked confidence."""

    mean: float
    low: float | None
    high: float | None
    count: int

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.mean:.2f} (one seed)"
        return f"{self.mean:.2f} ± {self.high - self.mean:.2f} ({self.count} seeds)"


def two_sided_t_probability(t: float, degrees: int) -> float:
    """P(|T| < t) for Student's t with an integer number of degrees of freedom (Abramowitz & Stegun 26.7.3-4).

    θ = atan(t/√ν);   odd ν:  2/π·(θ + sin θ·(cos θ + 2/3·cos³θ + ...));   even ν:  sin θ·(1 + 1/2·cos²θ + ...)
    """
    theta = math.atan(t / math.sqrt(degrees))
    cosine, odd = math.cos(theta), degrees % 2
    term = cosine if odd else 1.0
    total = term if degrees > 1 else 0.0
    for k in range(3 if odd else 2, degrees - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    series = math.sin(theta) * total
    return 2.0 / math.pi * (theta + series) if odd else series


def t_quantile(confidence: float, degrees: int) -> float:
    """The t with P(|T| < t) = confidence, by bisection."""
    if not 0.0 < confidence < 1.0 or degrees < 1:
        got = f"{confidence} and {degrees}"
        raise ConfigError(
            f"confidence must be in (0, 1) with at least one degree of freedom, got {got}: pass e.g. 0.95"
        )
    low, high = 0.0, 1.0
    while two_sided_t_probability(high, degrees) < confidence:
        high *= 2.0
    for _ in range(100):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if two_sided_t_probability(middle, degrees) < confidence else (low, middle)
    return high


def estimate(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """mean ± t·s/√n, with s the sample standard deviation."""
    if not values:
        raise ConfigError("a mean needs at least one value, got none: evaluate a run first")
    mean = fmean(values)
    if len(values) == 1:
        return Estimate(mean, None, None, 1)
    half = t_quantile(confidence, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half, len(values))


def difference(first: Mapping[Hashable, float], second: Mapping[Hashable, float], confidence: float = 0.95) -> Estimate:
    """Mean of `first` minus that of `second`, both by seed: paired where two seeds or more are common, else Welch's.

    Welch: (s1²/n1 + s2²/n2)² / Σ (si²/ni)²/(ni - 1) degrees of freedom, rounded down. One seed leaves no interval.
    """
    pairs = [value - second[seed] for seed, value in first.items() if seed in second]
    if len(pairs) > 1:
        return estimate(pairs, confidence)
    sides = (list(first.values()), list(second.values()))
    mean, count = fmean(sides[0]) - fmean(sides[1]), min(map(len, sides))
    if count < 2:
        return Estimate(mean, None, None, count)
    parts = [variance(side) / len(side) for side in sides]
    weight = sum(part**2 / (len(side) - 1) for part, side in zip(parts, sides, strict=True))
    degrees = max(1, math.floor(sum(parts) ** 2 / weight)) if weight else 1
    half = t_quantile(confidence, degrees) * math.sqrt(sum(parts))
    return Estimate(mean, mean - half, mean + half, count)
