"""Ctrl-C ends `sts` within seconds, whatever it is stuck in, and a second Ctrl-C ends it at once.

Python answers a signal in the main thread only, and only between two of its instructions: a wait in C code, a library
that takes the handler over or a hook that hangs at the interpreter's exit can all keep a process alive for ever. Python
also writes every signal's number to a descriptor, from the handler in C; a thread of ours reads it there.
"""

import atexit
import contextlib
import math
import os
import signal
import socket
import sys
import threading
import time

SECONDS_TO_STOP = 15.0
"""From the first Ctrl-C: an orderly stop of a run with Ray took 11 to 12 on two busy cores."""
_SAME_PRESS_SECONDS = 0.1  # a launcher may pass on the Ctrl-C that the terminal has sent to everybody already
_SECONDS_FOR_WORKERS = 2.0
_LAST_SECONDS = 10


def end_promptly(seconds_to_stop: float = SECONDS_TO_STOP) -> None:
    """Watch for Ctrl-C from now on until the process is gone; for a process of our own, called in its main thread."""
    if threading.current_thread() is not threading.main_thread():  # Python tells of signals nowhere else
        return
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)
    # A terminal's Ctrl-C goes to data loaders as well, and theirs would come through the same socket as a second one.
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
    interrupted = threading.Event()
    atexit.register(_skip_teardown, interrupted)  # the first to be registered is the last to be called
    watch = threading.Thread(target=_watch, args=(reader, interrupted, seconds_to_stop), daemon=True)
    watch.start()


def _skip_teardown(interrupted: threading.Event) -> None:
    """Leave right after the other hooks: what follows takes seconds with Ray, and no thread could end it."""
    if interrupted.is_set():
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(130)


def _watch(signals: socket.socket, interrupted: threading.Event, seconds_to_stop: float) -> None:
    _next_interrupt(signals, until=math.inf)
    interrupted.set()
    until = time.monotonic() + seconds_to_stop
    _next_interrupt(signals, until=time.monotonic() + _SAME_PRESS_SECONDS)
    _next_interrupt(signals, until=until)
    _end()


def _next_interrupt(signals: socket.socket, *, until: float) -> None:
    """Wait for the next SIGINT, but not longer than `until`; other signals are none of our business."""
    numbers = b""
    with contextlib.suppress(TimeoutError):
        while signal.SIGINT not in numbers and (left := until - time.monotonic()) > 0:
            signals.settimeout(None if math.isinf(left) else left)
            numbers = signals.recv(64)


def _end() -> None:
    signal.alarm(_LAST_SECONDS)  # the kernel's: for when nobody reads what is printed here
    with contextlib.suppress(Exception):
        _kill_own_cluster()
    with contextlib.suppress(Exception):
        print("sts: stopped at once; rerun the same command to resume from the newest checkpoint", file=sys.stderr)
        sys.stderr.flush()
        sys.stdout.flush()
    os._exit(130)


def _kill_own_cluster() -> None:
    """End the Ray processes that this one has started; Ray's own way to do so waits for locks."""
    if "ray" not in sys.modules:
        return
    node = sys.modules["ray._private.worker"]._global_node
    started = {kind: info.process for kind, infos in list(node.all_processes.items()) for info in infos}
    with contextlib.suppress(Exception):
        started["raylet"].terminate()  # it ends its workers and agents; without it some go on for minutes
        started["raylet"].wait(timeout=_SECONDS_FOR_WORKERS)
    for process in started.values():
        process.kill()
