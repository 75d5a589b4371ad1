"""The runs that a sweep consists of, each with a name that says what it is."""

import hashlib
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sts_core import SmoothingConfig
from sts_pipelines.config.flags import set_flags
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.config.plain import to_dict
from sts_pipelines.config.reading import FlagText, from_dict
from sts_pipelines.config.sweep import AXES, GridConfig, SweepConfig
from sts_pipelines.errors import SchemaError

Settings = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run of a sweep: a teacher, other settings, and whether it is there only as the control of others."""

    smoothing: SmoothingConfig
    control: bool = False
    settings: Settings = field(default_factory=dict)
    """Values of the further fields that the sweep varies, by their dotted names."""
    seed: int | None = None
    """Its seed, where the sweep has several."""

    @property
    def cell(self) -> str:
        """m0.9-p0.5, with the granularity where it is not the layer, and other settings; controls have p = 0."""
        s = self.smoothing
        suffix = "" if s.granularity == "layer" or s.preserve_probability == 0 else f"-{s.granularity}"
        others = [f"-{name}{_file_name(value)}" for name, value in self.settings.items()]
        return f"m{short(s.momentum)}-p{short(s.preserve_probability)}{suffix}{''.join(others)}"

    @property
    def name(self) -> str:
        """The cell, with the seed where there are several."""
        return self.cell if self.seed is None else f"{self.cell}-seed{self.seed}"

    def pipeline_of(self, base: PipelineConfig) -> PipelineConfig:
        """`base` with all that is this trial's."""
        pipeline = with_settings(base, self.settings)
        if self.seed is not None:
            pipeline = replace(pipeline, training=replace(pipeline.training, seed=self.seed))
        return pipeline.with_smoothing(f"{base.name}-{self.name}", self.smoothing)


def short(value: float) -> str:
    """The shortest text that no other number has, so that no two trials share a name: 0.9, and 1 instead of 1.0."""
    return repr(float(value)).removesuffix(".0")


def _file_name(value: Any) -> str:
    """A value as a part of a folder's name; one that had to be changed for it gets a digest, so as to stay unique."""
    text = str(value)
    clean = re.sub(r"[^\w.+-]", "_", text)
    return clean if clean == text else f"{clean}_{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def with_settings(pipeline: PipelineConfig, settings: Settings) -> PipelineConfig:
    """`pipeline` with these fields set, as flags would set them; a mistake names the field and the value."""
    if not settings:
        return pipeline
    flags = [
        (name.replace("-", "_").split("."), FlagText(value) if isinstance(value, str) else value)
        for name, value in settings.items()
    ]
    try:
        return from_dict(PipelineConfig, set_flags(PipelineConfig, to_dict(pipeline), flags))
    except SchemaError as error:
        chosen = ", ".join(f"{name}={value}" for name, value in settings.items())
        raise SchemaError([f"sweep.over {chosen}: {problem}" for problem in error.problems]) from None


def trials_of(config: SweepConfig) -> list[Trial]:
    """All trials of a sweep in a fixed order: the same config gives the same trials, so a sweep can be resumed.

    Trials that are the same teacher under two names (TMA at two granularities) are visited once.
    """
    grid = config.sweep
    points = _grid_points(grid) if grid.search == "grid" else _samples(grid, seed=config.pipeline.training.seed)
    found = [trial for point in points for trial in trials_at(config, *point)]
    return distinct([*found, *(controls(found) if grid.with_control else ())])


def num_trials(config: SweepConfig) -> int:
    """How many trials a sweep has; at most as many where the values of one decide about the next."""
    grid = config.sweep
    if grid.search != "optuna":
        return len(trials_of(config))
    return grid.num_samples * max(1, len(grid.seeds)) * (1 + grid.with_control)


def trials_at(config: SweepConfig, m: float, p: float, granularity: Any, settings: Settings) -> list[Trial]:
    """The trials of one point: one for each seed."""
    base = with_settings(config.pipeline, settings).training.smoothing
    teacher = replace(base, momentum=m, preserve_probability=p, granularity=granularity)
    return [Trial(smoothing=teacher, settings=settings, seed=seed) for seed in config.sweep.seeds or (None,)]


def distinct(trials: Iterable[Trial]) -> list[Trial]:
    """The first trial of each name."""
    named: dict[str, Trial] = {}
    for trial in trials:
        named.setdefault(trial.name, trial)
    return list(named.values())


def _grid_points(grid: GridConfig) -> list[tuple[float, float, Any, Settings]]:
    others = [name for name in grid.over if name not in AXES]
    combinations = [
        dict(zip(others, values, strict=True)) for values in itertools.product(*(grid.over[name] for name in others))
    ]
    granularities = grid.over.get("smoothing.granularity", grid.granularities)
    return [(m, p, g, settings) for settings in combinations for g in granularities for m, p in _points(grid)]


def _points(grid: GridConfig) -> list[tuple[float, float]]:
    if grid.cells:
        return [(m, p) for m, p in grid.cells]
    momenta = map(float, grid.over.get("smoothing.momentum", grid.momenta))
    probabilities = [float(p) for p in grid.over.get("smoothing.preserve_probability", grid.preserve_probabilities)]
    return [(m, p) for m in momenta for p in probabilities]


def controls(trials: Iterable[Trial]) -> Iterator[Trial]:
    """TMA(m_eff) for every trial that has a spatial part."""
    for trial in trials:
        if trial.smoothing.preserve_probability > 0:
            yield replace(trial, smoothing=trial.smoothing.matched_moving_average(), control=True)


def _samples(grid: GridConfig, *, seed: int) -> list[tuple[float, float, Any, Settings]]:
    """`num_samples` points, drawn once for all from the seed; what matters about m and p is the order of 1-m and 1-p.

    m-p:      log10(1-m) and log10(1-p) uniform in [-3, 0]
    m_eff-p:  log10(1-m_eff) uniform in [-3, -0.3], log10(1-p) uniform in [log10(1-m_eff), 0], 1-m = (1-m_eff)/(1-p)
    over:     one of each field's values; an m or p that is given there is not drawn
    """
    generator = np.random.default_rng(seed)
    fixed = {name: values for name, values in grid.over.items() if name in AXES}
    others = {name: values for name, values in grid.over.items() if name not in AXES}
    granularities = fixed.pop(AXES[2], grid.granularities)
    drawn = np.random.default_rng((seed, 1))  # another stream: the points stay those of a sweep without further fields
    samples: list[tuple[float, float, Any, Settings]] = []
    for first, second in generator.random((grid.num_samples, 2)):
        chosen = {name: values[drawn.integers(len(values))] for name, values in (fixed | others).items()}
        samples.extend(point_of(grid, first, second, chosen | {AXES[2]: g}) for g in granularities)
    return samples


def point_of(grid: GridConfig, first: float, second: float, chosen: Settings) -> tuple[float, float, Any, Settings]:
    """m, p, granularity and further settings of two numbers in [0, 1] and the `chosen` values of fields by name."""
    rest = dict(chosen)
    m, p = _point(grid, first, second)
    m, p = float(rest.pop(AXES[0], m)), float(rest.pop(AXES[1], p))
    return m, p, rest.pop(AXES[2]), rest


def _point(grid: GridConfig, first: float, second: float) -> tuple[float, float]:
    if grid.coordinates == "m-p":
        pull, rest = 10.0 ** (-3.0 * first), 10.0 ** (-3.0 * second)
    else:
        expected = 10.0 ** (-0.3 - 2.7 * first)
        rest = expected ** float(second)
        pull = expected / rest
    return _complement(pull), _complement(rest)


def _complement(value: float) -> float:
    """1 - value, with value rounded to three digits: 0.99712, not 0.9971203947."""
    digits = 2 - math.floor(math.log10(value))
    return round(1.0 - round(value, digits), digits)
