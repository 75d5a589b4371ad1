"""Files appear whole, with the usual mode, and a lock ends with its process."""

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from sts_core.files import locked, replacing, write_atomically
from tests.processes import PIPE, Process

HOLD = """
import sys, time
from sts_core.files import locked
with locked(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def umask():
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_a_file_has_the_usual_mode_less_the_umask_whoever_wrote_it(tmp_path: Path, umask, mask: int, mode: int) -> None:
    umask(mask)
    write_atomically(tmp_path / "text", "words")
    with replacing(tmp_path / "secretive") as partial:
        partial.unlink()
        os.close(os.open(partial, os.O_CREAT | os.O_WRONLY, 0o600))
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("text", "secretive")] == [mode, mode]


@pytest.mark.parametrize("durable", [True, False])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "folder" / "file"
    write_atomically(path, "old", durable=durable)

    def fail() -> None:
        with replacing(path, durable=durable) as partial:
            partial.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert (path.read_text(), [entry.name for entry in path.parent.iterdir()]) == ("old", ["file"])
    write_atomically(path, b"new", durable=durable)
    assert (path.read_text(), [entry.name for entry in path.parent.iterdir()]) == ("new", ["file"])


def test_writers_of_one_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    texts = [str(number) * 10_000 for number in range(8)]
    threads = [threading.Thread(target=write_atomically, args=(tmp_path / "file", text)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert (tmp_path / "file").read_text() in texts
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.slow
def test_a_lock_is_exclusive_and_ends_with_a_killed_process(tmp_path: Path) -> None:
    path = tmp_path / "folder" / ".lock"
    with Process([sys.executable, "-c", HOLD, path], stdout=PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        started = time.monotonic()
        with pytest.raises(TimeoutError), locked(path, patience_seconds=0.2):
            pass
        assert time.monotonic() - started >= 0.2
        holder.kill()
        holder.wait(timeout=60)
    with locked(path, patience_seconds=10):
        assert path.is_file()
