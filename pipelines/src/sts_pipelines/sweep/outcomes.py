"""What a sweep has found, read from its trials' folders: the check that p and m were right, table, CSV, heat map."""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sts_core.files import write_atomically
from sts_eval import estimate, read_results, write_report
from sts_methods import MetricsLog, TrainingConfig
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.config.run_folder import describe_old_run
from sts_pipelines.errors import TrialError
from sts_pipelines.evaluation.settings import is_evaluated
from sts_pipelines.launch.driver import Failed
from sts_pipelines.launch.job import Job
from sts_pipelines.sweep.trials import Trial, short
from sts_pipelines.terminal import text_table, value_of

_FINISHED, _STOPPED, _ERROR = "finished.json", "stopped.json", "error.json"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one trial."""

    trial: Trial
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
    lines = MetricsLog(job.folder / "metrics.jsonl").read()
    updates = [line for line in lines if "preserve_probability" in line]
    if not updates:
        raise TrialError(f"{job.label} must log the p and m that it applied, got none: look at its metrics.jsonl")
    last = int(lines[-1]["step"])
    total = _schedule_length(job.pipeline.training, lines[-1])
    p = job.pipeline.training.smoothing.preserve_probability
    for line in updates:
        momenta = _scheduled(job.pipeline.training, line, total_steps=total)
        if not (any(_same(line["momentum"], m) for m in momenta) and _same(line["preserve_probability"], p)):
            raise TrialError(
                f"{job.label} was sampled with m={momenta[-1]} and p={p} but applied m={line['momentum']} and "
                f"p={line['preserve_probability']} at step {line['step']}: its result is void, remove {job.folder} "
                f"to train it anew"
            )
    content = {
        "step": last,
        "momentum": updates[-1]["momentum"],
        "preserve_probability": updates[-1]["preserve_probability"],
    }
    write_atomically(job.folder / _FINISHED, json.dumps(content) + "\n")
    return content


def _schedule_length(training: TrainingConfig, last: Mapping[str, Any]) -> int:
    """The steps that m is scheduled over: those done, unless the training stopped before its end."""
    if training.stop_after_epochs is None:
        return int(last["step"])
    return training.total_steps(round(last["step"] / last["epoch"]))


def _scheduled(training: TrainingConfig, line: Mapping[str, Any], *, total_steps: int) -> list[float]:
    """The m that the last update before a logged line may have had.

    Where no update was left out (after a loss that was not finite, or float16 gradients that overflowed), it is that of
    the line's own step. The last of u updates, of which some were left out, belongs to any step from u on.
    """
    steps = range(int(line.get("num_updates", line["step"])) - 1, int(line["step"]))
    return [training.momentum_at(step, total_steps=total_steps) for step in steps]


def _same(applied: float, sampled: float) -> bool:
    return abs(applied - sampled) <= 1e-12  # another machine's cosine may differ in the last digit


def applied_values(jobs: Sequence[Job], failed: Sequence[Failed]) -> dict[str, float]:
    """The m and p that the last job applied; jobs that failed or applied others are marked, and nothing is returned."""
    errors = {job.label: str(error) for job, error in failed}
    applied: dict[str, float] = {}
    for job in jobs:
        try:
            if job.label not in errors:
                applied = check_applied(job)
        except TrialError as void:
            errors[job.label] = str(void)
        if job.label in errors:
            note_error(job.folder, errors[job.label])
    return {} if errors else applied


def note_error(folder: Path, error: str) -> None:
    """Mark a trial as failed."""
    write_atomically(folder / _ERROR, json.dumps({"error": error}) + "\n")


def forget_errors(folders: Iterable[Path]) -> None:
    """A trial that starts again has neither failed nor been given up yet.

    Notes are emptied, and not removed: so a newer one takes the place of an older one in every copy of the folder.
    """
    for note in (folder / name for folder in folders for name in (_ERROR, _STOPPED)):
        if note.is_file():
            write_atomically(note, "{}\n")


def has_failed(folder: Path) -> bool:
    """Whether a trial is marked as failed."""
    return bool(_noted(folder / _ERROR))


def _noted(note: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(note.read_text()) if note.is_file() else {}
    return found


def mark_stopped(folder: Path, step: int) -> None:
    """Note that a search gave this trial up, so that a resumed search does not take it up again."""
    write_atomically(folder / _STOPPED, json.dumps({"step": step}) + "\n")


def is_finished(folder: Path, pipeline: PipelineConfig, *, searching: bool = False) -> bool:
    """Whether a trial has been trained, checked and evaluated as asked for now, or was given up by the search."""
    if searching and _noted(folder / _STOPPED):
        return True
    return (folder / _FINISHED).is_file() and is_evaluated(folder, pipeline)


def outcomes(folder: Path, trials: Sequence[Trial], *, metric: str) -> list[Outcome]:
    """What the trials' folders say about `trials`."""
    return [_outcome(folder / trial.name, trial, metric) for trial in trials]


def value_in(folder: Path, metric: str) -> float | None:
    """The metric that ranks trials, as a trial's folder has it."""
    return value_of(read_results(folder).entries, metric) if (folder / "results.json").is_file() else None


def _outcome(folder: Path, trial: Trial, metric: str) -> Outcome:
    if stopped := _noted(folder / _STOPPED):
        return Outcome(trial=trial, stopped_at=int(stopped["step"]))
    if error := _noted(folder / _ERROR):
        return Outcome(trial=trial, error=str(error["error"]))
    if not (folder / "results.json").is_file():
        return Outcome(trial=trial, error="no results")
    value = value_in(folder, metric)
    rates = [line["images_per_second"] for line in MetricsLog(folder / "metrics.jsonl").read()[1:]]
    speed = sum(rates) / len(rates) if rates else None
    return Outcome(
        trial=trial, value=value, images_per_second=speed, error=None if value is not None else f"no {metric}"
    )


def write_outcomes(found: Sequence[Outcome], folder: Path, *, metric: str) -> None:
    """Print the table and write sweep.csv and the report with the heat map."""
    rows = [_row(outcome, metric) for outcome in found]
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(folder / "sweep.csv", text.getvalue())
    print(text_table(rows, {column: column for column in rows[0]}))
    if any(outcome.trial.seed is not None for outcome in found):
        means = _means(found, metric)
        print(text_table(means, {column: column for column in means[0]}))
    print(f"table: {folder / 'sweep.csv'}")
    runs = [folder / outcome.trial.name for outcome in found if outcome.value is not None]
    if runs:
        _, page = write_report(runs, folder / "report", describe=describe_old_run)
        print(f"report: {page.absolute().as_uri()}")


def _means(found: Sequence[Outcome], metric: str) -> list[dict[str, str]]:
    """The mean of every cell over its seeds with its 95 % interval, the best first."""
    cells: dict[str, list[float]] = {}
    for outcome in found:
        cells.setdefault(outcome.trial.cell, []).extend([] if outcome.value is None else [outcome.value])
    means = {cell: estimate(values) for cell, values in cells.items() if values}
    ranked = sorted(means, key=lambda cell: -means[cell].mean)
    return [{"cell": cell, f"{metric}, mean and 95 % interval": str(means[cell])} for cell in ranked]


def _row(outcome: Outcome, metric: str) -> dict[str, str]:
    smoothing = outcome.trial.smoothing
    trial = outcome.trial
    seed = {} if trial.seed is None else {"seed": str(trial.seed)}
    return {
        "trial": trial.name,
        "m": short(smoothing.momentum),
        "p": short(smoothing.preserve_probability),
        "granularity": smoothing.granularity,
        "m_eff": short(smoothing.effective_momentum),
        **{name: str(value) for name, value in trial.settings.items()},
        **seed,
        "control": "yes" if trial.control else "",
        metric: "" if outcome.value is None else f"{outcome.value:.2f}",
        "images_per_second": "" if outcome.images_per_second is None else f"{outcome.images_per_second:.0f}",
        "note": outcome.error or (f"stopped at step {outcome.stopped_at}" if outcome.stopped_at is not None else ""),
    }
