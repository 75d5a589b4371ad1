"""Checkpoints ahead of time: a file in a run folder asks for one, and is gone when it is on disk."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

_FILE = ".checkpoint-now"
_waited_for: list[Path] = []


@contextlib.contextmanager
def answered_in(folders: Sequence[Path]) -> Iterator[None]:
    """While the body runs, the runs in `folders` can be asked for a checkpoint by `ask_all`."""
    before = list(_waited_for)
    _waited_for.extend(folders)
    try:
        yield
    finally:
        _waited_for[:] = before
        for folder in folders:
            (folder / _FILE).unlink(missing_ok=True)


def ask(folder: Path) -> None:
    """Ask the run in `folder` for a checkpoint."""
    (folder / _FILE).touch()


def ask_all() -> bool:
    """Ask the runs that this process waits for and that are in training; whether there are any."""
    for folder in _waited_for:
        if (folder / "plan.json").exists() and not (folder / "teacher.safetensors").exists():
            ask(folder)
    return not all_answered()


def all_answered() -> bool:
    """Whether no run has a request to answer."""
    return not any((folder / _FILE).exists() for folder in _waited_for)


def request_in(folder: Path) -> Callable[[], Callable[[], None] | None]:
    """What a runtime calls after every step to hear of a request, see `LocalRuntime`."""
    file = folder / _FILE
    return lambda: file.unlink if file.exists() else None
