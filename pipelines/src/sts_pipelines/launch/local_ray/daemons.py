"""The processes of a local Ray cluster: their end is noticed, and they do not outlive the command that started them."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sts_pipelines.errors import ClusterError
from sts_pipelines.launch.local_ray import reaper

_VITAL = {"raylet": "raylet (or an agent of it)", "gcs_server": "control service"}
_SECONDS_TO_LOOK = 0.5


@contextlib.contextmanager
def reaped(session: Path) -> Iterator[None]:
    """Processes of the cluster in `session` end with this one, also when it is killed."""
    command = [sys.executable, "-I", "-S", reaper.__file__, str(session), str(os.getpid())]
    # In a session of its own: neither the terminal's Ctrl-C nor its end is for it.
    process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield
    finally:
        process.communicate()


@contextlib.contextmanager
def watched(daemons: Mapping[str, Any]) -> Iterator[None]:
    """End the body with a `ClusterError` when one of Ray's `daemons` does: Ray would wait for it, and then exit(1)."""
    over, lost = threading.Event(), list[str]()

    def watch() -> None:
        while not over.wait(_SECONDS_TO_LOOK):
            lost.extend(name for name, process in daemons.items() if name in _VITAL and process.poll() is not None)
            if lost:
                signal.pthread_kill(main.ident or 0, signal.SIGUSR2)
                return

    main = threading.main_thread()
    if threading.current_thread() is not main:
        yield
        return
    before = signal.signal(signal.SIGUSR2, signal.default_int_handler)
    thread = threading.Thread(target=watch, name="daemons", daemon=True)
    thread.start()
    try:
        yield
    except BaseException as error:
        if not lost:
            raise
        raise ClusterError(
            f"Ray's {_VITAL[lost[0]]} was killed or crashed: rerun the same command to resume"
        ) from error
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGUSR2, before)
