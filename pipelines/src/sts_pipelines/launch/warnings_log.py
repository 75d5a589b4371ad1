"""Warnings of workers: written into the run folder as they come, since Ray shows nobody what its workers print."""

import json
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sts_core.distributed import rank

_FILE = "warnings.jsonl"


@contextmanager
def warnings_noted(folder: Path) -> Iterator[None]:
    """Each warning for users that comes up in this process is a line of warnings.jsonl in `folder`, too."""
    show, noted = warnings.showwarning, set[str]()

    def show_and_note(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        show(message, category, *place, **more)
        if category is UserWarning and str(message) not in noted:
            noted.add(str(message))
            _append(folder, str(message))

    warnings.showwarning = show_and_note
    try:
        yield
    finally:
        warnings.showwarning = show


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
