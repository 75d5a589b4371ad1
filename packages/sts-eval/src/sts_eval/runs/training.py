"""A run's training.json and metrics.jsonl, as training or a pipeline wrote them."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sts_core import StateError
from sts_eval.results import RunResults, newest

TRAINING_NAME = "training.json"
METRICS_NAME = "metrics.jsonl"

Describe = Callable[[Path], Mapping[str, Any]]
"""What training.json would say of a run that has none, because it is older than that file."""


def read_training(folder: Path, describe: Describe | None = None) -> Mapping[str, Any]:
    """What is known of a run's training: training.json, else what `describe` says, else nothing.

    All of it may be absent: `seed`; `recipe`, text that runs share which differ in seed and smoothing only; `length`;
    `smoothing`, the fields of a SmoothingConfig; `data`, what the images were; `conditions`, to be compared with a row
    of the paper; `settings` by dotted name; `control`, the command that trains the matched moving average.
    """
    file = folder / TRAINING_NAME
    if not file.is_file():
        return describe(folder) if describe is not None else {}
    try:
        loaded = json.loads(file.read_text())
    except ValueError as error:
        raise StateError(f"{file} must be JSON, but it is not ({error}): restore it from the run") from error
    if not isinstance(loaded, Mapping):
        raise StateError(
            f"{file} must hold named values, but it holds {type(loaded).__name__}: restore it from the run"
        )
    return loaded


def entries_of(results: RunResults, training: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The newest entry of each kind; its `data` holds only what differs from the data of the training, if anything.

    Features are float32 unless it says otherwise.
    """
    usual = {**training.get("data", {}), "precision": "float32"}
    entries = []
    for entry in results.entries:
        other = {name: value for name, value in entry.get("data", {}).items() if value != usual.get(name)}
        rest = {name: value for name, value in entry.items() if name != "data"}
        entries.append(rest | ({"data": other} if other else {}))
    return [dict(entry) for entry in newest(entries)]


def read_metrics(file: Path) -> list[Mapping[str, Any]]:
    """The lines of metrics.jsonl, none without that file; the last may be cut short by a kill, others must be whole."""
    if not file.is_file():
        return []
    lines = file.read_text(errors="replace").splitlines()
    metrics: dict[Any, Mapping[str, Any]] = {}
    for number, line in enumerate(lines, start=1):
        try:
            value = json.loads(line)
        except ValueError:
            if number == len(lines):
                continue
            value = None
        if not isinstance(value, Mapping):
            raise StateError(
                f"every line of {METRICS_NAME} must be a JSON object, line {number} of {file} is not: delete that line"
            )
        metrics[value.get("step", number)] = value  # steps repeated after a resume count once
    return list(metrics.values())
