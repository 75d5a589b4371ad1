"""Warnings of workers: written into the run folder as they come, since Ray shows nobody what its workers print."""

import json
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sts_core.distributed import rank

_FILE = "warnings.jsonl"
_LOGGERS = ("sts_core", "sts_methods", "sts_eval", "sts_pipelines")


@contextmanager
def warnings_noted(folder: Path) -> Iterator[None]:
    """Each warning for users that comes up in this process is a line of warnings.jsonl in `folder`, too.

    Whether it is given to Python's warnings or to a logger of ours.
    """
    show, noted = warnings.showwarning, set[str]()

    def note(message: str) -> None:
        if message not in noted:
            noted.add(message)
            _append(folder, message)

    def show_and_note(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        show(message, category, *place, **more)
        if category is UserWarning:
            note(str(message))

    loggers, handler = [logging.getLogger(name) for name in _LOGGERS], _Noting(note)
    warnings.showwarning = show_and_note
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        warnings.showwarning = show
        for logger in loggers:
            logger.removeHandler(handler)


class _Noting(logging.Handler):
    """Prints what nothing else handles, as `logging` does without any handler, and notes it."""

    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._note = note

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            print(record.getMessage(), file=sys.stderr, flush=True)
        self._note(record.getMessage())


def _append(folder: Path, message: str) -> None:
    line = json.dumps({"time": round(time.time(), 3), "rank": rank(), "warning": message})
    try:
        with (folder / _FILE).open("a") as file:
            file.write(line + "\n")
    except OSError:  # the disk that the warning is about may be full
        return


class WarningsReader:
    """The warnings that come into run folders from now on; several ranks mostly have the same, which counts once."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._read = {folder / _FILE: _size(folder / _FILE) for folder in folders}
        self._told: set[str] = set()

    def new(self) -> list[str]:
        """What has come since the last call."""
        found = [warning for file in self._read for warning in self._new_lines(file) if warning not in self._told]
        self._told |= set(found)
        return [*dict.fromkeys(found)]

    def _new_lines(self, file: Path) -> list[str]:
        if _size(file) <= self._read[file]:
            return []
        with file.open("rb") as lines:
            lines.seek(self._read[file])
            whole, newline, _ = lines.read().rpartition(b"\n")
        self._read[file] += len(whole) + len(newline)
        return [json.loads(line)["warning"] for line in whole.splitlines()]


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
