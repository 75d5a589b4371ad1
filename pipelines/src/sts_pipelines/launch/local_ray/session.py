"""Folders for the sockets and logs of local Ray clusters, of which nothing stays but logs that somebody may need."""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from sts_core.files import locked
from sts_pipelines.config.storage_path import private_folder

_MARK, _LOCK, _LOGS = "owned", ".lock", "-logs"
_SECONDS_TO_KEEP_LOGS = 7 * 24 * 3600.0


@contextlib.contextmanager
def session_folder() -> Iterator[Path]:
    """A new folder for Ray's sockets and logs, removed at the end; those of commands that were killed are removed too.

    Its mark, locked while we live, is what lets a folder be removed. It is not in the run folder because the path of a
    socket may have at most 107 bytes.
    """
    parent = _folder_of_sessions()
    with contextlib.ExitStack() as ours:
        with locked(parent / _LOCK):  # or a folder whose mark is not locked yet would pass for a killed command's
            for old in parent.iterdir():
                if _is_abandoned(old) or _is_outdated(old):
                    shutil.rmtree(old, ignore_errors=True)
            folder = Path(tempfile.mkdtemp(prefix="", dir=parent))
            ours.enter_context(locked(folder / _MARK))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def keep_logs(session: Path) -> Path:
    """Let a session's logs, and nothing else of it, stay for some days; where they are."""
    kept = session.with_name(f"{session.name}{_LOGS}")
    with contextlib.suppress(OSError):  # none were written
        (session / "session_latest" / "logs").resolve().rename(kept)
        os.utime(kept)
    return kept


def _is_outdated(logs: Path) -> bool:
    return logs.name.endswith(_LOGS) and time.time() - logs.stat().st_mtime > _SECONDS_TO_KEEP_LOGS


def _folder_of_sessions() -> Path:
    """The folder of this user's sessions."""
    return private_folder(Path("/tmp" if os.path.isdir("/tmp") else tempfile.gettempdir()) / f"sts-ray-{os.getuid()}")


def _is_abandoned(session: Path) -> bool:
    """Whether the folder has our mark and nobody holds its lock."""
    if not (session / _MARK).is_file():
        return False
    try:
        with locked(session / _MARK, patience_seconds=0):
            return True
    except OSError:  # held, or no longer there
        return False
