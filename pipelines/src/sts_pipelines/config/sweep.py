"""What a sweep visits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from sts_core import ConfigError, Network
from sts_pipelines.config.evaluation import measurable
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.errors import require

AXES = ("smoothing.momentum", "smoothing.preserve_probability", "smoothing.granularity")
"""The fields of momenta, preserve_probabilities and granularities, for which `over` may stand in."""


@dataclass(frozen=True, kw_only=True)
class GridConfig:
    """Which teachers a sweep visits, and how."""

    momenta: tuple[float, ...] = (0.0, 0.9, 0.99, 0.999)
    """Values of m: the paper's grid."""
    preserve_probabilities: tuple[float, ...] = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.999)
    """Values of p: the figure's .1 to .9, and 0, .99 and .999, which its text speaks of."""
    granularities: tuple[Literal["layer", "module", "channel", "neuron"], ...] = ("layer",)
    """Values of the granularity."""
    cells: tuple[tuple[float, float], ...] = ()
    """Pairs (m, p), written [[0.9, 0.5], [0.99, 0.7]], to visit instead of momenta x preserve_probabilities."""
    over: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Further fields with their values, for every cell: --sweep.over optimizer.lr=0.03,0.1, once for each field."""
    seeds: tuple[int, ...] = ()
    """Seeds with which everything is trained, for means with intervals; without them the pipeline's own."""
    search: Literal["grid", "random", "asha", "optuna"] = "grid"
    """Every cell, or random samples, to the end; many samples of which ASHA stops the worse half early; or samples that
    Optuna chooses by what the ones before have reached."""
    num_samples: int = 32
    """Samples of a search, each with all seeds; a grid has as many trials as cells."""
    coordinates: Literal["m-p", "m_eff-p"] = "m-p"
    """A search draws (m, p), or p and m_eff = 1 - (1-p)(1-m) and solves for m."""
    with_control: bool = False
    """Train for every cell with p > 0 also its control TMA(m_eff)."""
    metric: str = "knn/teacher/top1"
    """What ranks the trials: the loss of self-supervised training does not."""
    cells_per_trial: int = 1
    """Cells that one worker group trains one after the other (grid only): small ones share the workers' start-up."""
    max_concurrent: int | None = None
    """Trials at a time; without it as many as the cluster has room for."""
    one_student: bool = False
    """Train one student with a bank of all teachers: only right where the teacher does not influence training."""

    def __post_init__(self) -> None:
        require(self.num_samples >= 1, f"num_samples must be at least 1, got {self.num_samples}", "num_samples")
        for name in ("cells_per_trial", "max_concurrent"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"{name} must be at least 1, got {value}", name)
        self._check_cells()
        self._check_metric()
        self._check_over()
        if self.one_student and self.search != "grid":
            raise ConfigError(
                f"one_student needs search: grid, got {self.search}: the bank holds every cell from the start",
                fields=("one_student", "search"),
            )

    def _check_over(self) -> None:
        for name, values in self.over.items():
            require(bool(values), f"over: {name} needs at least one value", "over")
        for name in AXES[:2]:
            for value in self.over.get(name, ()):
                require(_is_fraction(value), f"over: {name} must be in [0, 1], got {value}", "over")
        require(
            "seed" not in self.over, "over: seed is not a setting to choose, but one to average over: set seeds", "over"
        )
        require(len(set(self.seeds)) == len(self.seeds), f"seeds must differ, got {self.seeds}", "seeds")
        others = [*set(self.over) - set(AXES), *(["seeds"] if self.seeds else [])]
        require(
            not (self.one_student and others),
            f"one_student varies teachers alone, got {', '.join(others)}",
            "one_student",
            "over",
            "seeds",
        )

    def _check_cells(self) -> None:
        values: dict[str, Sequence[float]] = {
            "momenta": self.momenta,
            "preserve_probabilities": self.preserve_probabilities,
        }
        for name, numbers in values.items():
            require(
                bool(numbers or self.cells),
                f"{name} must not be empty: give at least one value, or cells",
                name,
                "cells",
            )
        require(
            bool(self.granularities),
            "granularities must not be empty: give at least one, such as layer",
            "granularities",
        )
        values["cells"] = [number for cell in self.cells for number in cell]
        for name, numbers in values.items():
            for value in numbers:
                require(0 <= value <= 1, f"{name} must be in [0, 1], got {value}: they are fractions", name)

    def _check_metric(self) -> None:
        evaluation, _, rest = self.metric.partition("/")
        network, _, number = rest.partition("/")
        known = measurable().get(evaluation)
        if known is None or network not in get_args(Network) or not number:
            message = f"metric must be evaluation/network/number such as knn/teacher/top1, got {self.metric}"
            raise ConfigError(message, fields=("metric",))
        numbers = [metric.name for metric in known.metrics]
        require(number in numbers, f"metric: {evaluation} measures {', '.join(numbers)}, got {number}", "metric")
        quick = [f"{one.name}/.../{one.metrics[0].name}" for one in measurable().values() if one.trains_nothing]
        require(
            self.search != "asha" or f"{evaluation}/.../{number}" in quick,
            f"ASHA ranks trials by {' or '.join(quick)}, got metric {self.metric}",
            "search",
            "metric",
        )
        require(
            not self.one_student or network == "teacher",
            f"one_student has one student for all cells, got metric {self.metric}: rank by a number of the teacher",
            "one_student",
            "metric",
        )


@dataclass(frozen=True, kw_only=True)
class SweepConfig:
    """A grid or a search over (m, p, granularity) and any other field; every trial is a Ray Train run."""

    pipeline: PipelineConfig = field(metadata={"flatten": True})
    """What all trials share."""
    sweep: GridConfig = field(default_factory=GridConfig)
    """Which teachers are visited."""

    def __post_init__(self) -> None:
        evaluation, network, _ = self.sweep.metric.split("/", 2)
        measured = self.pipeline.evaluation
        require(
            evaluation in measured.after_training and network in measured.networks,
            f"sweep.metric must be one of the numbers that evaluation asks for, got {self.sweep.metric}: "
            f"add {evaluation} to evaluation.after_training and {network} to evaluation.networks, or rank by another",
            "sweep",
            "pipeline",
        )
        if self.sweep.one_student:
            labels = getattr(self.pipeline.training.method, "pseudo_labels", None)
            require(
                labels == "student",
                f"sweep.one_student needs method.pseudo_labels: student, got {labels}: "
                "with any other setting the teacher changes what the student learns",
                "sweep",
                "pipeline",
            )
            schedule = self.pipeline.training.momentum_schedule
            require(
                schedule == "constant",
                f"sweep.one_student needs momentum_schedule: constant, got {schedule}",
                "sweep",
                "pipeline",
            )


def _is_fraction(value: Any) -> bool:
    try:
        return 0 <= float(value) <= 1
    except (TypeError, ValueError):
        return False
