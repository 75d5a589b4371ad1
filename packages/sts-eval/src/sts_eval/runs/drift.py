"""Teacher dynamics: the paper's smoothing figure, from the drift that training recorded or from saved teachers.

The figure shows, for epochs 1 to 20 on a log scale, the mean squared difference between the teachers of adjacent
epochs, in weights (left) and in outputs (right), without smoothing, with TMA (m 0.999) and with SE (p 0.999).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from torch import Tensor, nn

from sts_core import ConfigError, StateError, output_drift, parameter_drift
from sts_eval.evaluations import Evaluation, Metric, register_evaluation
from sts_eval.runs.training import METRICS_NAME, read_metrics

DRIFT = register_evaluation(
    Evaluation(
        name="drift",
        title="Teacher dynamics",
        column="drift",
        metrics=(Metric("weights-mse", "MSE of weights", ""), Metric("outputs-mse", "MSE of outputs", "")),
        place=60,
        identity=("epoch",),
        own_section=True,
        logged=True,
    )
)
FIGURE_EPOCHS = 20  # the paper: "at the early training stages (epoch 1 to 20)"


@dataclass(frozen=True)
class DriftRecord:
    """How far the teacher moved in the epoch that ends at `epoch`."""

    epoch: float
    weights: float
    """Mean squared difference of all parameters."""
    outputs: float
    """Mean squared difference of the outputs on one fixed batch."""


@dataclass(frozen=True)
class DriftCurve:
    """One line in each half of the figure."""

    name: str
    records: tuple[DriftRecord, ...]

    def mean(self, quantity: str) -> float:
        """Geometric mean over the epochs, as the eye takes it from a log scale."""
        return geometric_mean([max(getattr(record, quantity), 1e-300) for record in self.records])

    def decades_per_epoch(self, quantity: str) -> float:
        """Slope of log10(MSE) against the epoch, by least squares: negative where the teacher converges (Remark 2)."""
        xs = [record.epoch for record in self.records]
        ys = [math.log10(max(getattr(record, quantity), 1e-300)) for record in self.records]
        middle, level = sum(xs) / len(xs), sum(ys) / len(ys)
        spread = sum((x - middle) ** 2 for x in xs)
        return sum((x - middle) * (y - level) for x, y in zip(xs, ys, strict=True)) / spread if spread else 0.0

    def entries(self) -> list[dict[str, Any]]:
        """The rows for results.json, two per epoch."""
        common = {"evaluation": DRIFT.name, "network": "teacher", "which": "last"}
        return [
            {**common, "metric": f"{quantity}-mse", "value": getattr(record, quantity), "epoch": record.epoch}
            for record in self.records
            for quantity in ("weights", "outputs")
        ]


def drift_curve(name: str, records: Sequence[DriftRecord], *, epochs: int | None = FIGURE_EPOCHS) -> DriftCurve:
    """The records of the first `epochs` epochs in order (all with None)."""
    kept = sorted((r for r in records if epochs is None or r.epoch <= epochs), key=lambda record: record.epoch)
    if not kept:
        raise ConfigError(f"a drift curve needs at least one epoch, got none for {name}: train with track_drift on")
    if any(not math.isfinite(value) or value < 0 for r in kept for value in (r.weights, r.outputs)):
        raise ConfigError(
            f"drift must be finite and not negative, which that of {name} is not: look at the run's losses"
        )
    return DriftCurve(name, tuple(kept))


def read_drift(path: str | Path, *, name: str | None = None, epochs: int | None = FIGURE_EPOCHS) -> DriftCurve:
    """The drift curve of a run, from the `parameter_drift` and `output_drift` in its metrics.jsonl."""
    folder = Path(path)
    file = folder / METRICS_NAME if folder.is_dir() else folder
    if not file.is_file():
        raise StateError(f"drift is recorded in {METRICS_NAME}, but {file} does not exist: pass the folder of a run")
    found = [_record(line, file) for line in read_metrics(file) if _has_drift(line)]
    records = {record.epoch: record for record in found}  # an epoch that was repeated after a resume counts once
    return drift_curve(name or file.parent.name, list(records.values()), epochs=epochs)


def _has_drift(line: Mapping[str, Any]) -> bool:
    return line.get("parameter_drift") is not None and line.get("output_drift") is not None


def _record(line: Mapping[str, Any], file: Path) -> DriftRecord:
    try:
        return DriftRecord(*(float(line[name]) for name in ("epoch", "parameter_drift", "output_drift")))
    except (KeyError, TypeError, ValueError):
        raise StateError(
            f"drift needs a number for epoch, parameter_drift and output_drift, {file} has {dict(line)}: "
            "delete that line"
        ) from None


def teacher_dynamics(
    name: str, teachers: Iterable[nn.Module], batch: Tensor, *, epochs: int | None = FIGURE_EPOCHS
) -> DriftCurve:
    """The curve of teachers saved at the start and after each epoch; two of them are in memory at a time."""
    records: list[DriftRecord] = []
    previous: nn.Module | None = None
    for epoch, teacher in enumerate(teachers):
        if previous is teacher:
            raise ConfigError("each epoch's teacher must be a module of its own, got the same one twice: copy it")
        if previous is not None:
            weights, outputs = parameter_drift(previous, teacher), output_drift(previous, teacher, batch)
            records.append(DriftRecord(float(epoch), weights, outputs))
        previous = teacher
    return drift_curve(name, records, epochs=epochs)


def smoothing_effect(curves: Mapping[str, DriftCurve], *, unsmoothed: str) -> dict[str, dict[str, float]]:
    """For each other curve, how many times less the teacher moves than without smoothing (Remark 1), and the slopes."""
    if unsmoothed not in curves:
        raise ConfigError(f"the reference must be one of {', '.join(curves)}, got {unsmoothed!r}")
    base = curves[unsmoothed]
    return {
        name: {
            **{f"{quantity}_ratio": base.mean(quantity) / curve.mean(quantity) for quantity in ("weights", "outputs")},
            **{f"{quantity}_slope": curve.decades_per_epoch(quantity) for quantity in ("weights", "outputs")},
        }
        for name, curve in curves.items()
        if name != unsmoothed
    }
