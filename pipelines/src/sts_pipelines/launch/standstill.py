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
import uuid
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from sts_core.distributed import broadcast_object, rank, world_size
from sts_methods import RunPlan, format_seconds

TIMES_THE_USUAL = 20
"""A step that takes so many times as long as the others is not slow, but stands still."""
TIMES_FOR_THE_FIRST = 4
"""So many times `seconds` has the first step, which compiles, connects and reads from cold disks."""
_SECONDS_BETWEEN_NOTES = 1.0
_SECONDS_TO_DIE = 10.0
_SECONDS_TO_TELL = 3.0
_SECONDS_OF_A_FREEZE = 5.0  # a look that comes so late: this process did not run either
_NOTES_OF_SILENCE = 3  # so many of ours without one of another rank's
_FRAMES = 6
_TORCH = str(Path(torch.__file__).parent) + os.sep
_WAITING = {("sts_core", "distributed.py"), ("training", "failure_checks.py"), ("runs", "metrics_log.py", "flush")}
"""Files, and a function, where the host waits for its GPU, and the GPU for the other ranks."""


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
    """Whether it is in torch's hands or waits for its GPU, which it also does while it waits for other ranks."""


class Board(Protocol):
    """Where ranks leave their notes."""

    def write(self, note: Note) -> None: ...
    def read(self) -> dict[int, Note]: ...
    def remove(self, number: int) -> None: ...


class RayBoard:
    """The key-value store of the Ray cluster: every machine reaches it, and it hangs with none of the workers.

    All ranks make theirs together: each start of the workers has a name, and reads no notes of those before it.
    """

    def __init__(self, run: str) -> None:
        from ray.runtime_context import get_runtime_context

        self.start = f"{run}/{broadcast_object(uuid.uuid4().hex)}"
        self.machine = str(get_runtime_context().get_node_id())

    def write(self, note: Note) -> None:
        from ray.experimental.internal_kv import _internal_kv_put

        _internal_kv_put(self._key(note.rank), json.dumps(asdict(note)), overwrite=True)

    def read(self) -> dict[int, Note]:
        from ray.experimental.internal_kv import _internal_kv_get

        texts = {number: _internal_kv_get(self._key(number)) for number in range(world_size())}
        return {number: Note(**json.loads(text)) for number, text in texts.items() if text}

    def remove(self, number: int) -> None:
        from ray.experimental.internal_kv import _internal_kv_del

        _internal_kv_del(self._key(number))

    def _key(self, number: int) -> str:
        return f"sts-standstill/{self.start}/{number}"


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
        self._looked, self._stood = self._since, 0.0
        self._seen: dict[int, tuple[int, int]] = {}
        """Of each rank the number of its last note, and that of ours when it was new."""

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
        self._since, self._step = now, step  # in this order: `look` reads the limit first
        if step == self._last:
            self._over.set()

    @contextlib.contextmanager
    def resting(self) -> Iterator[None]:
        """No step is expected in here."""
        self._rests += 1
        try:
            yield
        finally:
            self._since = time.monotonic()
            self._rests -= 1

    def limit(self) -> float:
        """Seconds without a step that are a standstill."""
        if not self._step:
            return TIMES_FOR_THE_FIRST * self.seconds
        usual = statistics.median(self._taken) if self._taken else 0.0
        return max(self.seconds, TIMES_THE_USUAL * usual)

    def _watch(self) -> None:
        while not self._over.wait(_SECONDS_BETWEEN_NOTES):
            try:
                self.look()
            except Exception:  # Ray has gone, and ends this process itself
                return
        with contextlib.suppress(Exception):
            self.board.remove(rank())

    def look(self) -> None:
        """Leave a note, and act if no step has come for too long."""
        self.board.write(self.note())
        limit, resting, since = self.limit(), self._rests, self._since
        stood = 0.0 if resting else self._without_step(since)
        if stood < limit / 2:
            self._seen.clear()
            return
        notes = self.board.read()
        for note in notes.values():
            if note.number != self._seen.get(note.rank, (-1, 0))[0]:
                self._seen[note.rank] = (note.number, self._number)
        if stood >= limit and not self._went_on(since):
            silent = [r for r in notes if self._number - self._seen[r][1] > _NOTES_OF_SILENCE]
            self._act(notes, silent, since)

    def _went_on(self, since: float) -> bool:
        return self._rests > 0 or self._since != since

    def _without_step(self, since: float) -> float:
        """Seconds since the last step, but for those in which the job was frozen (docker pause, scontrol suspend)."""
        now, before = time.monotonic(), max(since, self._looked)
        if since >= self._looked:
            self._stood = 0.0
        passed = now - before
        self._stood += passed if passed < _SECONDS_OF_A_FREEZE else _SECONDS_BETWEEN_NOTES
        self._looked = now
        return self._stood

    def note(self) -> Note:
        """This rank's note."""
        self._number += 1
        files = _stack_of(self._thread_of_training)
        file, _, name = files[0] if files else ("", 0, "")
        return Note(
            rank=rank(), pid=os.getpid(), machine=self.machine, step=self._step, number=self._number,
            stack=[f"{Path(path).name}:{line} in {function}" for path, line, function in files[:_FRAMES]],
            waits=_waits(file, name),
        )  # fmt: skip

    def _act(self, notes: Mapping[int, Note], silent: Sequence[int], since: float) -> None:
        found = culprits(notes, silent)
        able = [number for number in notes if number not in silent]
        if rank() == min(able, default=rank()):
            usual = statistics.median(self._taken) if self._taken else None
            _print_warning(standstill(found, silent, stood=self._stood, usual=usual))
        for note in found:
            if note.machine == self.machine and note.rank != rank():
                with contextlib.suppress(ProcessLookupError):
                    self.end(note.pid)
        if not self._over.wait(_SECONDS_TO_DIE) and not self._went_on(since):
            self.end(os.getpid())  # still here: nobody could be killed, or it is this rank


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


def _print_warning(message: str) -> None:
    """As a warning, which is written to a disk that may be the one that hangs."""
    thread = threading.Thread(target=warnings.warn, args=(message, UserWarning), daemon=True)
    thread.start()
    thread.join(_SECONDS_TO_TELL)


def _stack_of(thread: int) -> list[tuple[str, int, str]]:
    """File, line and function of each frame of a thread, the innermost first."""
    frame, found = sys._current_frames().get(thread), []
    while frame is not None:
        found.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return found


def _waits(file: str, function: str) -> bool:
    """Whether code waits for others: torch's, or ours where torch's C code waits for the device."""
    place = Path(file).parts[-2:]
    return place in _WAITING or (*place, function) in _WAITING or _is_torch_s(file)


def _is_torch_s(file: str) -> bool:
    """Whether code is torch's, but for its data loaders, which wait for disks."""
    return file.startswith(_TORCH) and not file.startswith(os.path.join(_TORCH, "utils", "data"))
