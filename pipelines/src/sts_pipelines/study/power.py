"""How many seeds a comparison needs, from the variance of a pilot."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from sts_pipelines.study.outcomes import Outcomes
from sts_pipelines.study.plan import Comparison, Study
from sts_pipelines.study.verdicts import LEVEL

POWER = 0.9
MOST_SEEDS = 2000


@dataclass(frozen=True, kw_only=True)
class Need:
    """What a comparison needs to be decided."""

    comparison: Comparison
    deviation: float
    """Standard deviation of the difference between seeds, pooled over the pilot's comparisons of the same kind."""
    seeds: int
    """Seeds with which equal teachers are found equivalent, and those a margin apart different, in 9 of 10 studies."""
    planned: int
    power: float
    """Chance of that with the planned seeds."""
    detectable: float
    """The difference that the planned seeds find in 9 of 10 studies."""


def needs(study: Study, pilot: Outcomes) -> list[Need]:
    """One for each comparison, at the level that Holm's first step leaves."""
    level = LEVEL / len(study.comparisons)
    deviations = pooled_deviations(study, pilot)
    return [
        Need(
            comparison=comparison,
            deviation=deviations[comparison],
            seeds=seeds_needed(deviations[comparison], comparison.margin, level),
            planned=study.num_seeds(comparison),
            power=power(study.num_seeds(comparison), deviations[comparison], comparison.margin, level),
            detectable=detectable(study.num_seeds(comparison), deviations[comparison], level),
        )
        for comparison in study.comparisons
    ]


def pooled_deviations(study: Study, pilot: Outcomes) -> Mapping[Comparison, float]:
    """Root of the mean variance over the comparisons of one method and measure: single ones of few seeds are noisy.

    A difference of differences, and one with an untrained network, varies in its own way and stands alone if it was
    in the pilot.
    """
    effects = {c: list(pilot.effect(c).values()) for c in study.comparisons}
    kinds: dict[object, list[float]] = {}
    for comparison, values in effects.items():
        if len(values) > 1:
            kinds.setdefault(_kind(comparison), []).append(variance(values))
    return {c: _pooled(kinds.get(_kind(c)) or kinds[_kind(c, alone=False)]) for c in effects}


def _pooled(variances: Sequence[float]) -> float:
    return math.sqrt(fmean(variances))


def _kind(comparison: Comparison, *, alone: bool = True) -> object:
    arms = (*comparison.plus, *comparison.minus)
    if alone and (len(arms) > 2 or any(teacher == "untrained" for _, teacher in arms)):
        return comparison
    return arms[0][0].partition("-")[0], comparison.measure


def seeds_needed(deviation: float, margin: float, level: float) -> int:
    """The fewest seeds with a power of 0.9, by bisection."""
    low, high = 2, MOST_SEEDS
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if power(middle, deviation, margin, level) >= POWER else (middle + 1, high)
    return low


def detectable(seeds: int, deviation: float, level: float) -> float:
    """The smallest difference that the t-test finds with a power of 0.9, by bisection in standard errors."""
    low, high = 0.0, 100.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if _found(seeds, middle, level) >= POWER else (middle, high)
    return high * deviation / math.sqrt(seeds)


def _found(seeds: int, shift: float, level: float) -> float:
    from scipy import stats

    return float(stats.nct.sf(stats.t.isf(level / 2, seeds - 1), seeds - 1, shift))


def power(seeds: int, deviation: float, margin: float, level: float) -> float:
    """The smaller of two: that TOST finds equal teachers equivalent, and the t-test those a margin apart different.

    With δ = margin·√n/s and T noncentral t:  2·P(T(δ) > t[1 - level]) - 1  and  P(T(δ) > t[1 - level/2]).
    """
    from scipy import stats

    degrees, shift = seeds - 1, margin * math.sqrt(seeds) / deviation
    equivalent = 2 * stats.nct.sf(stats.t.isf(level, degrees), degrees, shift) - 1
    return float(max(0.0, min(equivalent, _found(seeds, shift, level))))
