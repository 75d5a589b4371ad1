"""What a sweep has found, read from its trials' folders: the check that p and m were right, table, CSV, heat map."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sts_core import cosine_momentum
from sts_eval import read_results
from sts_eval.results import write_atomically
from sts_methods.metrics import MetricsLog
from sts_pipelines.cells import Cell
from sts_pipelines.errors import TrialError
from sts_pipelines.evaluation import is_evaluated
from sts_pipelines.launcher import Job
from sts_pipelines.pipeline import PipelineConfig
from sts_pipelines.reporting import write
from sts_pipelines.summary import value_of

# What differs between the cells of one sweep.
SWEEP_NAMES = ("smoothing.momentum", "smoothing.preserve_probability", "smoothing.granularity")
_FINISHED = "finished.json"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one cell."""

    cell: Cell
    value: float | None = None
    """The metric that ranks trials; None for a trial that was stopped or failed."""
    images_per_second: float | None = None
    """Mean throughput of its training."""
    stopped_at: int | None = None
    """The step at which a search gave it up."""
    error: str | None = None
    """Why it failed."""


def check_applied(job: Job) -> dict[str, float]:
    """Raise unless every logged step of the run applied the sampled p and the scheduled m; then it counts as finished.

    The logged values come from the live smoother, not from the config: a sweep whose trials all train with the same
    values is caught here. Returns the last step, and the m and p that it applied.
    """
    training = job.pipeline.training
    sampled = training.smoothing
    lines = [line for line in MetricsLog(job.folder / "metrics.jsonl").read() if "preserve_probability" in line]
    if not lines:
        raise TrialError(f"{job.label} must log the p and m that it applied, got none: look at its metrics.jsonl")
    total = int(lines[-1]["step"])
    for line in lines:
        expected = sampled.momentum
        if training.momentum_schedule == "cosine" and sampled.momentum > 0:
            expected = cosine_momentum(int(line["step"]) - 1, total_steps=total, start=sampled.momentum)
        applied = (line["momentum"], line["preserve_probability"])
        if abs(applied[0] - expected) > 1e-9 or abs(applied[1] - sampled.preserve_probability) > 1e-9:
            message = (
                f"{job.label} was sampled with m={expected:.6g} and p={sampled.preserve_probability:.6g} but applied "
                f"m={applied[0]:.6g} and p={applied[1]:.6g} at step {line['step']}: its result is void, run it again"
            )
            write_atomically(job.folder / "error.json", json.dumps({"error": message}) + "\n")
            raise TrialError(message)
    content = {
        "step": total,
        "momentum": lines[-1]["momentum"],
        "preserve_probability": lines[-1]["preserve_probability"],
    }
    write_atomically(job.folder / _FINISHED, json.dumps(content) + "\n")
    return content


def note_errors(jobs: Sequence[Job], error: str) -> None:
    """Mark the jobs of a failed trial: those with all their results count, the others have failed."""
    for job in jobs:
        if is_evaluated(job.folder, job.pipeline):
            check_applied(job)
        else:
            write_atomically(job.folder / "error.json", json.dumps({"error": error}) + "\n")


def forget_errors(jobs: Sequence[Job]) -> None:
    """A trial that starts again has not failed yet."""
    for job in jobs:
        (job.folder / "error.json").unlink(missing_ok=True)


def mark_stopped(folder: Path, step: int) -> None:
    """Note that a search gave this trial up, so that a resumed search does not take it up again."""
    write_atomically(folder / "stopped.json", json.dumps({"step": step}) + "\n")


def is_finished(folder: Path, pipeline: PipelineConfig) -> bool:
    """Whether a trial has been trained, checked and evaluated as asked for now, or was given up by the search."""
    if (folder / "stopped.json").is_file():
        return True
    return (folder / _FINISHED).is_file() and is_evaluated(folder, pipeline)


def outcomes(folder: Path, cells: Sequence[Cell], *, metric: str) -> list[Outcome]:
    """What the trials' folders say about `cells`."""
    return [_outcome(folder / cell.name, cell, metric) for cell in cells]


def _outcome(folder: Path, cell: Cell, metric: str) -> Outcome:
    if (folder / "stopped.json").is_file():
        return Outcome(cell=cell, stopped_at=int(json.loads((folder / "stopped.json").read_text())["step"]))
    if (folder / "error.json").is_file():
        return Outcome(cell=cell, error=str(json.loads((folder / "error.json").read_text())["error"]))
    if not (folder / "results.json").is_file():
        return Outcome(cell=cell, error="no results")
    value = value_of(read_results(folder).entries, metric)
    rates = [line["images_per_second"] for line in MetricsLog(folder / "metrics.jsonl").read()[1:]]
    speed = sum(rates) / len(rates) if rates else None
    return Outcome(cell=cell, value=value, images_per_second=speed, error=None if value is not None else f"no {metric}")


def write_outcomes(found: Sequence[Outcome], folder: Path, *, metric: str) -> None:
    """Print the table and write sweep.csv and the report with the heat map."""
    rows = [_row(outcome, metric) for outcome in found]
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(folder / "sweep.csv", text.getvalue())
    print(_table(rows))
    print(f"table: {folder / 'sweep.csv'}")
    runs = [folder / outcome.cell.name for outcome in found if outcome.value is not None]
    if runs:
        print(write(runs, output=folder / "report"))


def _row(outcome: Outcome, metric: str) -> dict[str, str]:
    smoothing = outcome.cell.smoothing
    return {
        "cell": outcome.cell.name,
        "m": f"{smoothing.momentum:.6g}",
        "p": f"{smoothing.preserve_probability:.6g}",
        "granularity": smoothing.granularity,
        "m_eff": f"{smoothing.effective_momentum:.6g}",
        "control": "yes" if outcome.cell.control else "",
        metric: "" if outcome.value is None else f"{outcome.value:.2f}",
        "images_per_second": "" if outcome.images_per_second is None else f"{outcome.images_per_second:.0f}",
        "note": outcome.error or (f"stopped at step {outcome.stopped_at}" if outcome.stopped_at is not None else ""),
    }


def _table(rows: Sequence[dict[str, str]]) -> str:
    columns = list(rows[0])
    lines = [{column: column for column in columns}, *rows]
    widths = {column: max(len(line[column]) for line in lines) for column in columns}
    return "\n".join("  ".join(line[column].ljust(widths[column]) for column in columns).rstrip() for line in lines)
