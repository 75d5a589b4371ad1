"""Ends what is left of a local Ray cluster once the command that started it is gone, in whatever way.

python reaper.py SESSION OWNER, with a standard input that closes when its owner ends; imports nothing of ours.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path


def processes_of(session: str) -> Iterator[int]:
    """The processes that write to files in the folder `session`, or to its kept logs, as Ray's do; on Linux only."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile, or is somebody else's
            if any(_is_written(file, session) for file in (process / "fd").iterdir()):
                yield int(process.name)


def _is_written(file: Path, session: str) -> bool:
    return os.readlink(file).startswith(session) and bool(file.lstat().st_mode & 0o200)


def _reap(session: str, owner: int) -> None:
    sys.stdin.read()
    for pid in processes_of(session):
        if pid == owner:  # it holds the session's lock to its end
            continue
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    _reap(sys.argv[1], int(sys.argv[2]))
