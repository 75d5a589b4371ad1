"""The teachers that a sweep visits, each with a name that says what it is."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from sts_core import SmoothingConfig
from sts_pipelines.config.pipeline import GridConfig, SweepConfig


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One trial: a teacher, and whether it is there only as the control of others."""

    smoothing: SmoothingConfig
    control: bool = False

    @property
    def name(self) -> str:
        """m0.9-p0.5, with the granularity where it is not the layer; controls have p = 0."""
        s = self.smoothing
        suffix = "" if s.granularity == "layer" or s.preserve_probability == 0 else f"-{s.granularity}"
        return f"m{short(s.momentum)}-p{short(s.preserve_probability)}{suffix}"


def short(value: float) -> str:
    """The shortest text that no other number has, so that no two trials share a name: 0.9, and 1 instead of 1.0."""
    return repr(float(value)).removesuffix(".0")


def trials_of(config: SweepConfig) -> list[Trial]:
    """All trials of a sweep in a fixed order: the same config gives the same trials, so a sweep can be resumed.

    Trials that are the same teacher under two names (TMA at two granularities) are visited once.
    """
    base = config.pipeline.training.smoothing
    grid = config.sweep
    points = _points(grid) if grid.search == "grid" else _samples(grid, seed=config.pipeline.training.seed)
    trials: dict[str, Trial] = {}
    for granularity in grid.granularities:
        for m, p in points:
            smoothing = replace(base, momentum=m, preserve_probability=p, granularity=granularity)
            trial = Trial(smoothing=smoothing)
            trials.setdefault(trial.name, trial)
    if grid.with_control:
        for control in _controls(list(trials.values())):
            trials.setdefault(control.name, control)
    return list(trials.values())


def _points(grid: GridConfig) -> list[tuple[float, float]]:
    if grid.cells:
        return [(m, p) for m, p in grid.cells]
    return [(m, p) for m in grid.momenta for p in grid.preserve_probabilities]


def _controls(trials: list[Trial]) -> Iterator[Trial]:
    """TMA(m_eff) for every trial that has a spatial part."""
    for trial in trials:
        if trial.smoothing.preserve_probability > 0:
            yield Trial(smoothing=trial.smoothing.matched_moving_average(), control=True)


def _samples(grid: GridConfig, *, seed: int) -> list[tuple[float, float]]:
    """`num_samples` points, drawn once for all from the seed; what matters about m and p is the order of 1-m and 1-p.

    m-p:      log10(1-m) and log10(1-p) uniform in [-3, 0]
    m_eff-p:  log10(1-m_eff) uniform in [-3, -0.3], log10(1-p) uniform in [log10(1-m_eff), 0], 1-m = (1-m_eff)/(1-p)
    """
    generator = np.random.default_rng(seed)
    points = []
    for first, second in generator.random((grid.num_samples, 2)):
        if grid.coordinates == "m-p":
            pull, rest = 10.0 ** (-3.0 * first), 10.0 ** (-3.0 * second)
        else:
            expected = 10.0 ** (-0.3 - 2.7 * first)
            rest = expected ** float(second)
            pull = expected / rest
        points.append((_complement(pull), _complement(rest)))
    return points


def _complement(value: float) -> float:
    """1 - value, with value rounded to three digits: 0.99712, not 0.9971203947."""
    digits = 2 - math.floor(math.log10(value))
    return round(1.0 - round(value, digits), digits)
