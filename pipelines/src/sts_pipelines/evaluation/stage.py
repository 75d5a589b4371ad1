"""What of an evaluation is under way: a note in the results' folder, for those who watch from elsewhere."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from sts_core.distributed import rank
from sts_core.files import write_atomically

_NOTE = ".evaluating"


@contextlib.contextmanager
def stage(folder: Path, text: str) -> Iterator[None]:
    """Rank 0 notes `text` while the body runs."""
    if rank() == 0:
        write_atomically(folder / _NOTE, text, durable=False)
    try:
        yield
    finally:
        if rank() == 0:
            (folder / _NOTE).unlink(missing_ok=True)


def stage_of(folder: Path) -> str | None:
    """What is being evaluated in `folder` now."""
    try:
        return (folder / _NOTE).read_text()
    except OSError:
        return None
