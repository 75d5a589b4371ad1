"""Ctrl-C, SIGTERM and SIGHUP end `sts` within seconds, whatever it is stuck in, and a second one ends it at once.

Python answers a signal in the main thread only, and only between two of its instructions: a wait in C code, a library
that takes the handler over or a hook that hangs at the interpreter's exit can all keep a process alive for ever. Python
also writes every signal's number to a descriptor, from the handler in C; a thread of ours reads it there.

SIGTERM (of Slurm, Kubernetes and spot machines) and SIGHUP first ask the runs under way for a checkpoint; SIGUSR1,
which Slurm can send ahead of time, only does that.
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
from typing import Any

SECONDS_TO_STOP = 15.0
"""From the first Ctrl-C: an orderly stop of a run with Ray took 11 to 12 on two busy cores."""
SECONDS_TO_SAVE = 10.0
"""From SIGTERM to the checkpoint; with the orderly stop, less than the 30 that are the rule before SIGKILL follows."""
_ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
_SAME_PRESS_SECONDS = 0.1  # a launcher may pass on the Ctrl-C that the terminal has sent to everybody already
_LAST_SECONDS = 10

_exit_code: int | None = None
_is_time = threading.Event()


def end_promptly(seconds_to_stop: float = SECONDS_TO_STOP) -> None:
    """Watch for signals from now on until the process is gone; for a process of our own, called in its main thread."""
    if threading.current_thread() is not threading.main_thread():  # Python tells of signals nowhere else
        return
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)
    # A terminal's Ctrl-C goes to data loaders as well, and theirs would come through the same socket as a second one.
    os.register_at_fork(after_in_child=_forget_signals)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(number, _leave_to_watch)
    atexit.register(_skip_teardown)  # the first to be registered is the last to be called
    threading.Thread(target=_watch, args=(reader, seconds_to_stop), daemon=True).start()


def leave_with(code: int) -> None:
    """End with this code right after the exit hooks, unless a signal has said otherwise."""
    global _exit_code
    _exit_code = code if _exit_code is None else _exit_code


def code_of_signal() -> int:
    """What a command that a signal has ended exits with."""
    return 128 + signal.SIGINT if _exit_code is None else _exit_code


def _leave_to_watch(number: int, frame: object) -> None:
    """Nothing at first: that there is a handler brings the signal to the thread, which sends it on when it is time."""
    if _is_time.is_set():
        raise KeyboardInterrupt


def _forget_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        if signal.getsignal(number) is _leave_to_watch:
            signal.signal(number, signal.SIG_DFL)


def _skip_teardown() -> None:
    """Leave right after the other hooks: what follows takes seconds with Ray, crashes where its processes are gone."""
    if _exit_code is not None:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(_exit_code)


def _watch(signals: socket.socket, seconds_to_stop: float) -> None:
    number = _next_signal(signals, until=math.inf)
    leave_with(128 + number)
    if number != signal.SIGINT:
        _save(signals)
        _is_time.set()
        signal.pthread_kill(threading.main_thread().ident or 0, number)
        _next_signal(signals, until=time.monotonic() + seconds_to_stop)  # that one
    until = time.monotonic() + seconds_to_stop
    _next_signal(signals, until=time.monotonic() + _SAME_PRESS_SECONDS)
    _next_signal(signals, until=until)
    _end()


def _save(signals: socket.socket) -> None:
    """Give the runs under way some time to save; a second signal ends it."""
    if (requests := _requests()) is not None and requests.ask_all():
        until = time.monotonic() + SECONDS_TO_SAVE
        print("sts: saving a checkpoint before the end ...", file=sys.stderr, flush=True)
        while not requests.all_answered() and time.monotonic() < until:
            if _next_signal(signals, until=min(until, time.monotonic() + 0.1)):
                return


def _requests() -> Any:
    """The module that runs under way listen to, if it was imported."""
    return sys.modules.get("sts_pipelines.launch.requests")


def _next_signal(signals: socket.socket, *, until: float) -> int:
    """Wait for the next signal that ends a process, but not longer than `until`; 0 if none came."""
    with contextlib.suppress(TimeoutError):
        while (left := until - time.monotonic()) > 0:
            signals.settimeout(None if math.isinf(left) else left)
            for number in signals.recv(64):
                if number == signal.SIGUSR1 and (requests := _requests()) is not None:
                    requests.ask_all()
                if number in _ENDING:
                    return number
    return 0


def _end() -> None:
    signal.alarm(_LAST_SECONDS)  # the kernel's: for when nobody reads what is printed here
    with contextlib.suppress(Exception):
        print("sts: stopped at once; rerun the same command to resume from the newest checkpoint", file=sys.stderr)
        sys.stderr.flush()
        sys.stdout.flush()
    os._exit(code_of_signal())
