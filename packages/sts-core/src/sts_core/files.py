"""Files that are whole or not there, and locks that end with the process that holds them."""

import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = [
    "is_file_name",
    "is_uri",
    "locked",
    "replacing",
    "write_atomically",
]


def is_file_name(name: str) -> bool:
    """Whether a user's name may be that of a file: letters, digits, '-', '_' and, not at its start, '.'."""
    return re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*", name) is not None


def is_uri(path: str) -> bool:
    """Whether this is a place in an object store, such as s3://bucket/runs, and not a path of this machine."""
    return "://" in path


@contextmanager
def replacing(path: str | Path, *, durable: bool = True) -> Iterator[Path]:
    """A temporary file beside `path` to write to, which takes its place when the block ends and goes if it fails.

        with replacing("weights.safetensors") as partial:
            save_file(tensors, partial)

    `durable` waits for the disk, so that readers see a whole file also after the machine went down.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    partial.touch(mode=0o644, exist_ok=False)
    mode = stat.S_IMODE(partial.stat().st_mode)  # less the umask, which cannot be read without setting it
    try:
        yield partial
        partial.chmod(mode)  # safetensors makes the file anew, for its owner alone
        if durable:
            _sync(partial)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_atomically(path: str | Path, content: bytes | str, *, durable: bool = True) -> None:
    """Write a file of which readers see the old content or the new one, see `replacing`."""
    with replacing(path, durable=durable) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def locked(path: str | Path, *, patience_seconds: float | None = None) -> Iterator[None]:
    """Hold the lock file `path`, or raise TimeoutError if another process still does after `patience_seconds`.

    A process that is killed lets go of its locks. The file itself stays; only its lock means anything.
    """
    # Imported here, since torch is all that sts-core depends on: torch brings filelock, and the packages that lock
    # files name it among their own dependencies.
    from filelock import FileLock

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path, timeout=-1 if patience_seconds is None else patience_seconds):
        yield


def _sync(path: Path) -> None:
    with path.open("r+b") as file:
        os.fsync(file.fileno())
