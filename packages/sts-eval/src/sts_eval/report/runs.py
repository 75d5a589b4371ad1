"""Run folders as the report sees them: training, metrics and results, each checked as it is read."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sts_core import SmoothingConfig, StateError
from sts_eval.paper.rows import smoothing_kind
from sts_eval.results import FILE_NAME, RunResults, read_results
from sts_eval.runs.training import METRICS_NAME, TRAINING_NAME, Describe, entries_of, read_metrics, read_training

CONFIG_NAMES = ("config.yaml", "config.yml", "config.json")
"""Files by which older runs, without a training.json, are known as runs."""

GRANULARITY_SHORT = {"layer": "LW", "module": "MW", "channel": "CW", "neuron": "NW"}
"""The paper's abbreviations; MW is ours."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run folder."""

    name: str
    folder: Path
    training: Mapping[str, Any] = field(default_factory=dict)
    """What training.json says."""
    metrics: Sequence[Mapping[str, Any]] = ()
    results: RunResults | None = None

    @property
    def entries(self) -> tuple[dict[str, Any], ...]:
        return self.results.entries if self.results is not None else ()

    @property
    def recipe(self) -> str:
        """All that training depends on beside its smoothing and its seed: runs that share it are twins."""
        return str(self.training.get("recipe", ""))

    @property
    def seed(self) -> int | None:
        """The training's seed, where it or the results name it."""
        found = self.training.get("seed", self.results.seed if self.results else None)
        return found if isinstance(found, int) else None

    @property
    def seed_key(self) -> int | str:
        """What tells seeds apart: runs without a known seed count one by one."""
        return str(self.folder) if self.seed is None else self.seed

    @property
    def kind(self) -> str | None:
        """none, TMA, SE or STS; None if that is not known."""
        known = self.smoothing
        return None if known is None else smoothing_kind(known.momentum, known.preserve_probability)

    @property
    def smoothing(self) -> SmoothingConfig | None:
        """How the teacher followed the student, if that is known."""
        if not (values := self.training.get("smoothing")):
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # p = 1 was warned about when the run was started
            return SmoothingConfig(**values)

    def series(self, metric: str, over: str = "step") -> list[tuple[float, float]]:
        """(step, value) of a metric of metrics.jsonl, numbers only; `over` epochs, say, instead of steps."""
        return [
            (float(line[over]), float(line[metric]))
            for line in self.metrics
            if _is_number(line.get(over)) and _is_number(line.get(metric))
        ]


def is_measured(metric: str) -> bool:
    """Whether a metric of metrics.jsonl is called evaluation/network/number: measured of a network in training."""
    return metric.count("/") == 2


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def smoothing_label(smoothing: SmoothingConfig | None) -> str:
    """`STS m 0.99, p 0.7 (LW)`; the granularity only where p makes it matter."""
    if smoothing is None:
        return "not recorded"
    kind = smoothing_kind(smoothing.momentum, smoothing.preserve_probability)
    numbers = [f"m {smoothing.momentum:g}"] if smoothing.momentum > 0 else []
    if smoothing.preserve_probability > 0:
        numbers.append(f"p {smoothing.preserve_probability:g} ({GRANULARITY_SHORT[smoothing.granularity]})")
    return " ".join([kind, ", ".join(numbers)]).strip()


def read_runs(paths: Iterable[str | Path], describe: Describe | None = None) -> list[Run]:
    """All runs in `paths`, each a run folder or a folder that holds run folders; names are made unique."""
    folders = list(dict.fromkeys(folder.resolve() for path in paths for folder in _run_folders(Path(path))))
    if not folders:
        raise StateError("a report needs at least one run, got none: pass run folders")
    runs = [read_run(folder, describe) for folder in folders]
    return [_renamed(run, runs) for run in runs]


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (TRAINING_NAME, *CONFIG_NAMES, METRICS_NAME, FILE_NAME))


def _run_folders(path: Path) -> list[Path]:
    if not path.is_dir():
        raise StateError(f"a run must be a folder, {path} is none: correct the path")
    inner = sorted(folder for folder in path.iterdir() if folder.is_dir() and _is_run(folder))
    trained = any((path / name).is_file() for name in (METRICS_NAME, FILE_NAME))  # a comparison has a config too
    if _is_run(path) and (trained or not inner):
        return [path]
    if inner:
        return inner
    raise StateError(
        f"a run folder holds {TRAINING_NAME}, {METRICS_NAME} or {FILE_NAME}, {path} has none of them "
        "and no folder that has: pass the folder of a run"
    )


def _renamed(run: Run, runs: Sequence[Run]) -> Run:
    """Two runs of one name are told apart by their folders."""
    if sum(other.name == run.name for other in runs) == 1:
        return run
    alike = [other for other in runs if other.name == run.name]
    by_folder = len({other.folder.name for other in alike}) == len(alike)
    name = run.folder.name if by_folder else f"{run.folder.parent.name}/{run.folder.name}"
    return Run(**(run.__dict__ | {"name": name}))


def read_run(folder: Path, describe: Describe | None = None) -> Run:
    """One run folder; a file that is absent is absent, a file that is damaged is an error."""
    results = read_results(folder) if (folder / FILE_NAME).is_file() else None
    training = read_training(folder, describe)
    if results is not None:
        results = replace(results, entries=tuple(entries_of(results, training)))
    name = results.run if results is not None else str(training.get("settings", {}).get("name", folder.name))
    metrics = read_metrics(folder / METRICS_NAME)
    return Run(name=name, folder=folder, training=training, metrics=metrics, results=results)
