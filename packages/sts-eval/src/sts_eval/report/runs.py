"""Run folders as the report sees them: config, metrics and results, each checked as it is read."""

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sts_core import SmoothingConfig, StateError
from sts_eval.results import FILE_NAME, RunResults, read_results
from sts_eval.runs.config import (
    CONFIG_NAMES,
    METRICS_NAME,
    entries_of,
    read_config,
    read_metrics,
    recipe_of,
    training_section,
)

GRANULARITY_SHORT = {"layer": "LW", "module": "MW", "channel": "CW", "neuron": "NW"}
"""The paper's abbreviations; MW is ours."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run folder."""

    name: str
    folder: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    metrics: Sequence[Mapping[str, Any]] = ()
    results: RunResults | None = None

    @property
    def entries(self) -> tuple[dict[str, Any], ...]:
        return self.results.entries if self.results is not None else ()

    @property
    def section(self) -> Mapping[str, Any]:
        """The training's config."""
        return training_section(self.config)

    @property
    def recipe(self) -> str:
        """All that training depends on beside its smoothing and its seed: runs that share it are twins."""
        return json.dumps(recipe_of(self.config), sort_keys=True)

    @property
    def seed(self) -> int | None:
        """The training's seed, where config or results name it."""
        found = self.section.get("seed", self.results.seed if self.results else None)
        return found if isinstance(found, int) else None

    @property
    def seed_key(self) -> int | str:
        """What tells seeds apart: runs without a known seed count one by one."""
        return str(self.folder) if self.seed is None else self.seed

    @property
    def smoothing(self) -> SmoothingConfig | None:
        """How the teacher followed the student, if the config says so."""
        values = self.section.get("smoothing")
        if not isinstance(values, Mapping) or not {"momentum", "preserve_probability"} <= set(values):
            return None
        names = ("momentum", "preserve_probability", "granularity", "buffers")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # p = 1 was warned about when the run was started
            return SmoothingConfig(**{name: values[name] for name in names if name in values})

    def series(self, metric: str) -> list[tuple[float, float]]:
        """(step, value) of a metric of metrics.jsonl, numbers only."""
        return [
            (float(line["step"]), float(line[metric]))
            for line in self.metrics
            if _is_number(line.get("step")) and _is_number(line.get(metric))
        ]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def smoothing_kind(smoothing: SmoothingConfig) -> str:
    """none, TMA, SE or STS, by the two numbers."""
    temporal, spatial = smoothing.momentum > 0, smoothing.preserve_probability > 0
    return {(False, False): "none", (True, False): "TMA", (False, True): "SE", (True, True): "STS"}[temporal, spatial]


def smoothing_label(smoothing: SmoothingConfig | None) -> str:
    """`STS m 0.99, p 0.7 (LW)`; the granularity only where p makes it matter."""
    if smoothing is None:
        return "not recorded"
    kind = smoothing_kind(smoothing)
    numbers = [f"m {smoothing.momentum:g}"] if smoothing.momentum > 0 else []
    if smoothing.preserve_probability > 0:
        numbers.append(f"p {smoothing.preserve_probability:g} ({GRANULARITY_SHORT[smoothing.granularity]})")
    return " ".join([kind, ", ".join(numbers)]).strip()


def read_runs(paths: Iterable[str | Path]) -> list[Run]:
    """All runs in `paths`, each a run folder or a folder that holds run folders; names are made unique."""
    folders = list(dict.fromkeys(folder.resolve() for path in paths for folder in _run_folders(Path(path))))
    if not folders:
        raise StateError("a report needs at least one run, got none: pass run folders")
    runs = [read_run(folder) for folder in folders]
    return [_renamed(run, runs) for run in runs]


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (*CONFIG_NAMES, METRICS_NAME, FILE_NAME))


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
        f"a run folder holds {CONFIG_NAMES[0]}, {METRICS_NAME} or {FILE_NAME}, {path} has none of them "
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


def read_run(folder: Path) -> Run:
    """One run folder; a file that is absent is absent, a file that is damaged is an error."""
    results = read_results(folder) if (folder / FILE_NAME).is_file() else None
    config = read_config(folder)
    if results is not None:
        results = replace(results, entries=tuple(entries_of(results, config)))
    name = results.run if results is not None else str(config.get("name", folder.name))
    return Run(name=name, folder=folder, config=config, metrics=read_metrics(folder / METRICS_NAME), results=results)
