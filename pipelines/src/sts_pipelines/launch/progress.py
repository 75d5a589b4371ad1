"""Live progress of runs in other processes: the driver follows the files that rank 0 writes into the run folders."""

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, TextIO

from sts_core.files import write_atomically
from sts_methods import ProgressDisplay, RunPlan, format_seconds
from sts_pipelines.launch.warnings_log import WarningsReader
from sts_pipelines.launch.watching import FolderWatcher
from sts_pipelines.terminal import roughly

_PLAN = "plan.json"
_SECONDS_TO_START, _SECONDS_FOR_A_STEP = 30.0, 60.0
_CLOCKS_DIFFER = 1.0


def write_plan(folder: Path, plan: RunPlan, *, label: str) -> None:
    """Leave a note for the driver, atomically; `started` tells it from that of the same run before a restart."""
    told = replace(plan, config={}, training={})  # which have files of their own
    note = {"label": label or "run", "started": time.time(), **asdict(told)}
    write_atomically(folder / _PLAN, json.dumps(note), durable=False)


SecondsLeft = Mapping[str, float]
"""Of `training`, and of `evaluation` after it."""


def note_seconds_left(folder: Path, seconds: SecondsLeft) -> None:
    """Add an estimate to the note that `write_plan` left."""
    note = json.loads((folder / _PLAN).read_text())
    write_atomically(folder / _PLAN, json.dumps(note | {"seconds_left": seconds}), durable=False)


def seconds_left(folder: Path, *, since: float = 0.0) -> SecondsLeft | None:
    """The estimate in the note, if it has one and is not older than `since`."""
    try:
        found: SecondsLeft | None = json.loads((folder / _PLAN).read_text()).get("seconds_left")
    except (OSError, ValueError):
        return None
    return found if is_planned(folder, since=since) else None


def is_planned(folder: Path, *, since: float) -> bool:
    """Whether a run was begun since then; the clock of files may be a little behind."""
    return _modified(folder / _PLAN) >= since - _CLOCKS_DIFFER


def tell_seconds_left(label: str, left: SecondsLeft, *, num_later: int = 0) -> str:
    """`sts: about 31 hours to go, 2.1 hours of it evaluation`, or with the runs after it."""
    whole = sum(left.values())
    of_it = f", {roughly(left['evaluation'])} of it evaluation" if left["evaluation"] >= 1.0 else ""
    others = f"; {roughly(whole * (1 + num_later))} with the {num_later} after it" if num_later else ""
    return f"{label}: about {roughly(whole)} to go{of_it}{others}"


class Watcher(FolderWatcher):
    """Shows the runs in `folders` on `stream` while they are trained one after the other; a context manager."""

    def __init__(
        self,
        folders: Sequence[Path],
        *,
        stream: TextIO | None = None,
        say: Callable[[str], None] | None = None,
        every_seconds: float = 0.5,
    ) -> None:
        super().__init__(stream=stream, every_seconds=every_seconds)
        self.folders, self._say = list(folders), say
        self._since = time.time()
        self._warnings = WarningsReader(self.folders)
        self._display: ProgressDisplay | None = None

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        self._tell_warnings()

    def say(self, line: str) -> None:
        """Print a line of its own."""
        (self._say or super().say)(line)

    def _pause(self) -> None:
        self._stop.wait(self.every_seconds)
        self._tell_warnings()

    def _tell_warnings(self) -> None:
        for warning in self._warnings.new():
            if self._display is not None:
                self._display.close()
            self.warn(warning)

    def _watch(self) -> None:
        for position, folder in enumerate(self.folders, start=1):
            if self._is_planned(folder):
                self._follow(folder, later=self.folders[position:])

    def _is_planned(self, folder: Path) -> bool:
        """Waits until the present launch has written the note of this run; false when the launch is over."""
        patience = _Patience(_SECONDS_TO_START)
        while True:
            if seconds := patience.lost():
                self.say(f"{folder.name}: waiting for the workers to start, {format_seconds(seconds)} so far")
            finished = self._stop.is_set()
            if is_planned(folder, since=self._since):
                return True
            if finished:
                return False
            self._pause()

    def _follow(self, folder: Path, *, later: Sequence[Path]) -> None:
        """Show a run to its end, or until it has failed and a later one has started."""
        note = _note_in(folder)
        plan, display = self._open(note)
        step, told, patience = plan.first_step, False, _Patience(_SECONDS_FOR_A_STEP)
        while step < plan.total_steps:
            if seconds := patience.lost():
                display.close()
                self.say(f"{folder.name}: no step for {format_seconds(seconds)}; lost workers are started again")
            noted = _modified(folder / _PLAN)
            finished = self._stop.is_set() or any(_modified(other / _PLAN) > noted for other in later)
            before = note
            with contextlib.suppress(OSError):  # of a network's file system, while the note is replaced
                note = _note_in(folder)
            if note["started"] != before["started"]:  # the workers were restarted and say where they resume
                display.close()
                plan, display = self._open(note)
                step, told = plan.first_step, False
            for metrics in _tail(folder / "metrics.jsonl", after=step):
                step = int(metrics["step"])
                patience.restore()
                display.show(metrics)
            if "seconds_left" in note and not told and step < plan.total_steps:
                display.close()
                self.say(tell_seconds_left(note["label"], note["seconds_left"], num_later=len(later)))
                told = True
            if finished:
                break
            self._pause()
        display.close()

    def _open(self, note: Mapping[str, Any]) -> tuple[RunPlan, ProgressDisplay]:
        """Announce what the note says; the plan and its display."""
        plan = RunPlan(**{field.name: note[field.name] for field in fields(RunPlan)})
        start = f" from step {plan.first_step:,}" if plan.first_step else ""
        self.say(f"{note['label']}: {plan.total_steps:,} steps of {plan.images_per_step} images{start}")
        if plan.note is not None:
            self.say(plan.note)
        self._display = display = ProgressDisplay(
            total_steps=plan.total_steps, images_per_step=plan.images_per_step, stream=self.stream
        )
        return plan, display


def _note_in(folder: Path) -> dict[str, Any]:
    note: dict[str, Any] = json.loads((folder / _PLAN).read_text())
    return note


class _Patience:
    """Is lost after `seconds` without an event, or five times the longest wait for one so far, and then repeatedly."""

    def __init__(self, seconds: float) -> None:
        self.limit = seconds
        self._since = self._told = time.monotonic()

    def lost(self) -> float:
        """How long it has waited, if that is worth a word now; else 0."""
        now = time.monotonic()
        if now - self._told < self.limit:
            return 0.0
        self._told = now
        return now - self._since

    def restore(self) -> None:
        """An event has come."""
        now = time.monotonic()
        self.limit = max(self.limit, 5 * (now - self._since))
        self._since = self._told = now


def _modified(path: Path) -> float:
    return path.stat().st_mtime if path.exists() else 0.0


def last_step(folder: Path) -> str:
    """How far a run has come that is in training: step 40/154."""
    try:
        total = json.loads((folder / _PLAN).read_text())["total_steps"]
    except (OSError, ValueError, KeyError):
        return "starting"
    steps = [int(metrics["step"]) for metrics in _tail(folder / "metrics.jsonl", after=0)]
    return f"step {steps[-1] if steps else 0:,}/{total:,}"


def _tail(path: Path, *, after: int) -> list[dict[str, float]]:
    """The newest entries of a metrics file beyond a step; a line cut short is read the next time."""
    entries: list[dict[str, float]] = []
    for line in reversed(_last_lines(path)):
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if entry.get("step", 0) <= after:
            break
        entries.append({key: value for key, value in entry.items() if isinstance(value, int | float)})
    return entries[::-1]


def _last_lines(path: Path, *, num_bytes: int = 1 << 16) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - num_bytes))
            return file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
