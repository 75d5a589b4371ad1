"""Workers that stop without dying: each watches its own steps, and together they find out which one holds up the rest.

A killed worker is Ray's to notice. One that is stopped, or waits for a disk that hangs, keeps all others waiting for
ever. Every rank has a thread that leaves a note in Ray's key-value store each second. When no step comes, those threads
that still run read the notes, say who stands still and where, and kill it: Ray then starts the workers again.
"""

import contextlib
import json
import os
import signal
import statistics
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from sts_core.distributed import rank, world_size
from sts_methods import RunPlan, format_seconds

TIMES_THE_USUAL = 20
"""A step that takes so many times as long as the others is not slow, but stands still."""
_SECONDS_BETWEEN_NOTES = 1.0
_SECONDS_TO_DIE = 10.0
_SECONDS_OF_SILENCE = 3.0
_FRAMES = 6
_TORCH = str(Path(torch.__file__).parent) + os.sep
_WAITING = "failure_checks.py"  # where the host waits for its GPU, and the GPU for the other ranks


@dataclass(frozen=True, kw_only=True)
class Note:
    """What a rank says of itself."""

    rank: int
    pid: int
    machine: str
    step: int
    number: int
    """Notes before this one: of a stopped process it stays the same."""
    stack: Sequence[str]
    """Where the training is, the innermost function first."""
    waits: bool
    """Whether it is in torch's hands, which it also is while it waits for other ranks."""


class Board(Protocol):
    """Where ranks leave their notes."""

    def write(self, note: Note) -> None: ...
    def read(self) -> dict[int, Note]: ...


class RayBoard:
    """The key-value store of the Ray cluster: every machine reaches it, and it hangs with none of the workers."""

    def __init__(self, run: str) -> None:
        from ray.runtime_context import get_runtime_context

        self.run, self.machine = run, str(get_runtime_context().get_node_id())

    def write(self, note: Note) -> None:
        from ray.experimental.internal_kv import _internal_kv_put

        _internal_kv_put(self._key(note.rank), json.dumps(asdict(note)), overwrite=True)

    def read(self) -> dict[int, Note]:
        from ray.experimental.internal_kv import _internal_kv_get

        texts = {number: _internal_kv_get(self._key(number)) for number in range(world_size())}
        return {number: Note(**json.loads(text)) for number, text in texts.items() if text}

    def _key(self, number: int) -> str:
        return f"sts-standstill/{self.run}/{number}"


class StandstillWatch:
    """Ends workers that take no step for `seconds` and `TIMES_THE_USUAL` times the usual; a `RunListener`.

    Tell it of each step (`step`), and what takes long for other reasons happens in `resting`.
    """

    def __init__(
        self,
        board: Board,
        *,
        machine: str,
        seconds: float,
        end: Callable[[int], None] = lambda pid: os.kill(pid, signal.SIGKILL),
    ) -> None:
        self.board, self.machine, self.seconds, self.end = board, machine, seconds, end
        self._taken: deque[float] = deque(maxlen=51)
        self._step, self._since, self._number = 0, time.monotonic(), 0
        self._last, self._rests, self._thread_of_training = 0, 0, threading.get_ident()
        self._over = threading.Event()
        self._seen: dict[int, tuple[int, float]] = {}

    def restore(self) -> None:
        return

    def start(self, plan: RunPlan, method: nn.Module) -> None:
        self._thread_of_training, self._since = threading.get_ident(), time.monotonic()
        self._last = plan.total_steps
        self.board.write(self.note())
        threading.Thread(target=self._watch, name="standstill", daemon=True).start()

    def report(self, metrics: Mapping[str, float], saved: Callable[[], None] | None) -> None:
        return

    def close(self) -> None:
        self._over.set()

    def step(self, step: int) -> None:
        """A step has been taken."""
        now = time.monotonic()
        if self._step:  # the first one compiles, connects and warms up
            self._taken.append(now - self._since)
        self._step, self._since = step, now
        if step == self._last:
            self._over.set()

    @contextlib.contextmanager
    def resting(self) -> Iterator[None]:
        """No step is expected in here."""
        self._rests += 1
        try:
            yield
        finally:
            self._rests -= 1
            self._since = time.monotonic()

    def limit(self) -> float:
        """Seconds without a step that are a standstill."""
        usual = statistics.median(self._taken) if self._taken else 0.0
        return max(self.seconds, TIMES_THE_USUAL * usual)

    def _watch(self) -> None:
        while not self._over.wait(_SECONDS_BETWEEN_NOTES):
            try:
                self.look()
            except Exception:  # Ray has gone, and ends this process itself
                return

    def look(self) -> None:
        """Leave a note, and act if no step has come for too long."""
        self.board.write(self.note())
        stood = 0.0 if self._rests else time.monotonic() - self._since
        if stood < self.limit() / 2:
            self._seen.clear()
            return
        notes = self.board.read()
        for note in notes.values():
            if note.number != self._seen.get(note.rank, (-1, 0.0))[0]:
                self._seen[note.rank] = (note.number, time.monotonic())
        if stood >= self.limit():
            silent = [r for r, (_, at) in self._seen.items() if time.monotonic() - at > _SECONDS_OF_SILENCE]
            self._act(notes, silent, stood)

    def note(self) -> Note:
        """This rank's note."""
        self._number += 1
        files = _stack_of(self._thread_of_training)
        innermost = files[0][0] if files else ""
        return Note(
            rank=rank(), pid=os.getpid(), machine=self.machine, step=self._step, number=self._number,
            stack=[f"{Path(file).name}:{line} in {name}" for file, line, name in files[:_FRAMES]],
            waits=innermost.endswith(_WAITING) or _is_torch_s(innermost),
        )  # fmt: skip

    def _act(self, notes: Mapping[int, Note], silent: Sequence[int], stood: float) -> None:
        found = culprits(notes, silent)
        able = [number for number in notes if number not in silent]
        if rank() == min(able, default=rank()):
            usual = statistics.median(self._taken) if self._taken else None
            _tell(standstill(found, silent, stood=stood, usual=usual))
        for note in found:
            if note.machine == self.machine and note.rank != rank():
                with contextlib.suppress(ProcessLookupError):
                    self.end(note.pid)
        if not self._over.wait(_SECONDS_TO_DIE):  # still here: nobody could be killed, or it is this rank
            self.end(os.getpid())


def culprits(notes: Mapping[int, Note], silent: Sequence[int]) -> list[Note]:
    """Those that do not answer, or else those that do not wait for others, or, if that tells nothing, all."""
    stopped = [notes[number] for number in sorted(silent)]
    return stopped or [note for note in notes.values() if not note.waits] or list(notes.values())


def standstill(found: Sequence[Note], silent: Sequence[int], *, stood: float, usual: float | None) -> str:
    """One sentence: who stands still, since when, where, and what is done about it."""
    who = "; ".join(
        f"rank {note.rank} (process {note.pid}) {'does not answer, last seen' if note.rank in silent else 'is'} at "
        f"{' < '.join(note.stack) or 'an unknown place'}"
        for note in found
    )
    normally = "" if usual is None else f", where {format_seconds(usual) if usual >= 1 else f'{usual:.2f} s'} is usual"
    return (
        f"no step for {format_seconds(stood)}{normally}: {who}; the workers are ended and start again from the newest "
        "checkpoint (cluster.stuck_after_seconds)"
    )


def _tell(message: str) -> None:
    """As a warning, which is written to a disk that may be the one that hangs."""
    thread = threading.Thread(target=warnings.warn, args=(message, UserWarning), daemon=True)
    thread.start()
    thread.join(_SECONDS_OF_SILENCE)


def _stack_of(thread: int) -> list[tuple[str, int, str]]:
    """File, line and function of each frame of a thread, the innermost first."""
    frame, found = sys._current_frames().get(thread), []
    while frame is not None:
        found.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return found


def _is_torch_s(file: str) -> bool:
    """Whether code is torch's, but for its data loaders, which wait for disks."""
    return file.startswith(_TORCH) and not file.startswith(os.path.join(_TORCH, "utils", "data"))
