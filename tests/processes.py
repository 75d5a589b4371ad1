"""Processes that tests start: each is waited for with a time limit that ends it, and all that it started."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

PIPE, DEVNULL = subprocess.PIPE, subprocess.DEVNULL
Finished = subprocess.CompletedProcess[str]
SECONDS = 500.0
"""Less than pytest's own limit, which would end the test, but neither the process nor what it has started."""
_SECONDS_TO_DIE = 10.0


class Process(subprocess.Popen[Any]):
    """A process that prints its Python stacks when it must be ended; `with` ends whatever is left of it."""

    def __init__(self, command: Sequence[object], *, env: dict[str, str] | None = None, **options: Any) -> None:
        environment = dict(os.environ if env is None else env) | {"PYTHONFAULTHANDLER": "1"}
        super().__init__([str(word) for word in command], env=environment, **options)

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        end(self)


def run(command: Sequence[object], *, seconds: float = SECONDS, **options: Any) -> Finished:
    """The finished process with what it printed."""
    with Process(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options) as process:
        output, errors = finish(process, seconds=seconds)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def finish(process: Process, *, seconds: float = SECONDS, errors: Callable[[], str] = str) -> tuple[Any, Any]:
    """Wait for the end of a process; what it wrote to its pipes. `errors` reads what it wrote elsewhere."""
    return finish_all([process], seconds=seconds, errors=errors)[0]


def finish_all(
    processes: Sequence[Process], *, seconds: float = SECONDS, errors: Callable[[], str] = str
) -> list[tuple[Any, Any]]:
    """Wait for the end of processes that work together; when time is up all are ended and the test fails."""
    deadline = time.monotonic() + seconds
    try:
        return [process.communicate(timeout=max(0.0, deadline - time.monotonic())) for process in processes]
    except subprocess.TimeoutExpired:
        said = "\n".join(end(process) for process in processes)
    pytest.fail(f"{processes[0].args} did not end within {seconds:g} s; its output and stacks:\n{said}\n{errors()}")


def wait_until(
    reached: Callable[[], bool],
    process: Process,
    *,
    seconds: float = SECONDS,
    every_seconds: float = 0.05,
    errors: Callable[[], str] = str,
) -> None:
    """Wait until something has happened; fails when the process ends before, or when time is up."""
    deadline = time.monotonic() + seconds
    while not reached():
        ended = process.poll() is not None
        if ended and not reached():  # it may have happened right before the end
            pytest.fail(f"the process ended before it came so far ({process.returncode}):\n{end(process)}\n{errors()}")
        if time.monotonic() > deadline:
            pytest.fail(f"the process did not come so far within {seconds:g} s:\n{end(process)}\n{errors()}")
        time.sleep(every_seconds)


def end(process: Process) -> str:
    """End a process and all that descend from it; what it had to say, which includes the stacks of its threads."""
    below = list(descendants(process.pid)) if process.poll() is None else []
    if process.returncode is None:
        process.send_signal(signal.SIGABRT)  # faulthandler answers, from C, even if Python is stuck
    said = _last_words(process)
    for pid in below:
        kill(pid)
    process.kill()
    _last_words(process)
    return said


def _last_words(process: Process) -> str:
    """What comes from the pipes of a process that should be dead; others may hold them open."""
    try:
        said = process.communicate(timeout=_SECONDS_TO_DIE)
    except (subprocess.TimeoutExpired, ValueError):  # ValueError: the pipes were read to their end before
        return ""
    return "\n".join(text if isinstance(text, str) else text.decode(errors="replace") for text in said if text)


def kill(pid: int) -> None:
    """Kill a process that may be gone already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def descendants(root: int) -> dict[int, str]:
    """Process ids below `root` with their command lines, read from /proc."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if fields[0] != "Z":
                    parents[int(entry.name)] = int(fields[1])
            except (OSError, IndexError):
                continue  # it ended while we looked
    found: dict[int, str] = {}
    frontier = {root}
    while frontier:
        frontier = {child for child, parent in parents.items() if parent in frontier}
        for child in frontier:
            try:
                found[child] = (Path("/proc") / str(child) / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
    return found
