"""Live progress of a sweep, read from the trials' folders: a line for every result, and how far the others are."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from sts_eval import read_results
from sts_methods import format_seconds
from sts_pipelines.evaluation.stage import stage_of
from sts_pipelines.launch.progress import is_planned, last_step, seconds_left
from sts_pipelines.launch.warnings_log import WarningsReader
from sts_pipelines.launch.watching import FolderWatcher
from sts_pipelines.sweep.trials import Trial
from sts_pipelines.terminal import roughly, value_of


class TrialWatcher(FolderWatcher):
    """Watches the folders of `trials` while they are trained in any order; a context manager."""

    def __init__(
        self,
        folder: Path,
        trials: Sequence[Trial],
        *,
        metric: str,
        stream: TextIO | None = None,
        every_seconds: float = 1.0,
        again_seconds: float = 60.0,
    ) -> None:
        super().__init__(stream=stream, every_seconds=every_seconds)
        self.folder, self.metric, self.num_trials = folder, metric, len(trials)
        self.pending = [trial.name for trial in trials]
        self._started = self._said = time.monotonic()
        self._since, self._summed = time.time(), False
        self.again_seconds = again_seconds
        self._warnings = WarningsReader([folder / trial.name for trial in trials])

    def _watch(self) -> None:
        while self.pending:
            finished = self._stop.is_set()
            for warning in self._warnings.new():
                self.warn(warning)
            for name in list(self.pending):
                value = self._value(name)
                if value is not None:
                    self._announce(name, value)
            self._tell_sum()
            self._tell_under_way()
            if finished:
                return
            self._stop.wait(self.every_seconds)

    def _tell_sum(self) -> None:
        """How long all trials will take, as soon as one of them has an estimate."""
        estimates = [seconds_left(self.folder / name, since=self._since) for name in self.pending]
        known = [sum(seconds.values()) for seconds in estimates if seconds is not None]
        if self._summed or not known:
            return
        self._summed = True
        at_once = sum(is_planned(self.folder / name, since=self._since) for name in self.pending)
        whole = max(known) * len(self.pending) / at_once
        self.say(f"{len(self.pending)} trials take about {roughly(whole)} in all, {at_once} at a time")

    def _tell_under_way(self) -> None:
        """How far the trials in training or evaluation are, when nothing has been said for a while."""
        if time.monotonic() - self._said < self.again_seconds:
            return
        begun = [name for name in self.pending if (self.folder / name / "plan.json").exists()]
        parts = [f"{name} {stage_of(self.folder / name) or last_step(self.folder / name)}" for name in begun]
        self.say(f"under way: {', '.join(parts[:4])}{' ...' if parts[4:] else ''}" if parts else "waiting for workers")

    def _value(self, name: str) -> float | None:
        folder = self.folder / name
        if not (folder / "results.json").is_file():
            return None
        return value_of(read_results(folder).entries, self.metric)

    def _announce(self, name: str, value: float) -> None:
        self.pending.remove(name)
        done = self.num_trials - len(self.pending)
        left = (time.monotonic() - self._started) / done * len(self.pending)
        self.say(f"trial {done}/{self.num_trials}  {name}: {value:.1f}  {format_seconds(left)} left")

    def say(self, line: str) -> None:
        self._said = time.monotonic()
        super().say(line)
