"""Ctrl-C ends sts whatever it is stuck in: after a while by itself, and at once when it is pressed again."""

import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from sts_pipelines.cli import interrupts
from sts_pipelines.cli.main import main
from tests import processes

SCRIPT = """
import atexit, ctypes, functools, multiprocessing, os, pathlib, signal, sys, threading, time
from sts_pipelines.cli import interrupts, main as command
from sts_pipelines.cli.verbs import list_

libc = ctypes.CDLL(None)
forever = threading.Event().wait

def stuck():
    while True:
        try:
            forever()
        except KeyboardInterrupt:
            pass

def run(arguments, overrides):
    pathlib.Path(ready).touch()
    {body}

ready, seconds = sys.argv.pop(), float(sys.argv.pop())
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores SIGINT
list_.run = run
command.end_promptly = functools.partial(interrupts.end_promptly, seconds)
sys.exit(command.main())
"""
WAYS_TO_HANG = {
    "a loop that swallows it": "stuck()",
    "a handler that somebody replaced": "signal.signal(signal.SIGINT, lambda number, frame: None); forever()",
    "a wait in C": """
    mutex = ctypes.create_string_buffer(64)  # zeros are an unlocked mutex
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)""",
    "a hook at exit": "atexit.register(stuck); forever()",
}
A_THREAD_AT_EXIT = "threading.Thread(target=forever).start(); forever()"  # Python itself gives up at a second Ctrl-C
STOPPED = "sts: stopped; the same command continues from the newest checkpoint"
LAST_LINE = "sts: stopped at once; rerun the same command to resume from the newest checkpoint"


def start(body: str, tmp_path: Path, *, seconds_to_stop: float) -> processes.Process:
    command = [*(sys.executable, "-c", SCRIPT.format(body=body), "list"), seconds_to_stop, tmp_path / "ready"]
    process = processes.Process(command, stderr=processes.PIPE, text=True)
    processes.wait_until((tmp_path / "ready").exists, process, seconds=60)
    time.sleep(0.2)  # from the mark to the wait itself
    return process


@pytest.mark.parametrize("body", [*WAYS_TO_HANG.values(), A_THREAD_AT_EXIT], ids=[*WAYS_TO_HANG, "a thread at exit"])
def test_one_ctrl_c_ends_a_process_that_hangs_when_its_time_is_up(body: str, tmp_path: Path) -> None:
    with start(body, tmp_path, seconds_to_stop=0.5) as process:
        process.send_signal(signal.SIGINT)
        _, errors = processes.finish(process, seconds=60)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == LAST_LINE


@pytest.mark.parametrize("body", WAYS_TO_HANG.values(), ids=WAYS_TO_HANG)
def test_a_second_ctrl_c_ends_it_at_once(body: str, tmp_path: Path) -> None:
    with start(body, tmp_path, seconds_to_stop=600) as process:
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, errors = processes.finish(process, seconds=60)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == LAST_LINE


def test_an_interrupted_process_does_not_wait_for_its_interpreter_to_be_taken_down(tmp_path: Path) -> None:
    body = """
    libc.on_exit(libc.sleep, None)  # sleeps for as many seconds as the exit code says: 130
    try:
        forever()
    finally:
        time.sleep(0.2)  # the interpreter would be gone before a thread has seen the signal"""
    with start(body, tmp_path, seconds_to_stop=600) as process:
        process.send_signal(signal.SIGINT)
        _, errors = processes.finish(process, seconds=60)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == STOPPED


def test_a_process_ends_although_nobody_reads_what_it_prints(tmp_path: Path) -> None:
    body = """
    os.set_blocking(sys.stderr.fileno(), False)
    try:
        while True:
            os.write(sys.stderr.fileno(), b"full")
    except BlockingIOError:
        os.set_blocking(sys.stderr.fileno(), True)
    stuck()"""
    with start(body, tmp_path, seconds_to_stop=0.5) as process:
        process.send_signal(signal.SIGINT)
        processes.wait_until(lambda: not processes.is_running(process.pid), process, seconds=60)
    assert process.returncode == -signal.SIGALRM


NO_SECOND_PRESS = {
    "what a launcher passes on": "time.sleep(0.02); signal.raise_signal(signal.SIGINT)",
    "a data loader's own": """
        loader = multiprocessing.get_context("fork").Process(target=signal.raise_signal, args=[signal.SIGINT])
        time.sleep(0.3)
        loader.start()
        loader.join()""",
}


@pytest.mark.parametrize("cause", NO_SECOND_PRESS.values(), ids=NO_SECOND_PRESS)
def test_one_press_that_comes_twice_is_one(cause: str, tmp_path: Path) -> None:
    body = f"""
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        pass
    try:
        {cause}
    except KeyboardInterrupt:
        pass
    time.sleep(0.5)
    raise KeyboardInterrupt"""
    with start(body, tmp_path, seconds_to_stop=600) as process:
        _, errors = processes.finish(process, seconds=60)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == STOPPED


def test_a_program_that_calls_main_keeps_its_own_way_with_signals(capsys: pytest.CaptureFixture[str]) -> None:
    threads = threading.active_count()
    assert main(["list"]) == 0
    assert threading.active_count() == threads
    assert signal.set_wakeup_fd(-1) == -1


def test_a_thread_cannot_watch_for_signals_and_does_not_try() -> None:
    thread = threading.Thread(target=interrupts.end_promptly)
    thread.start()
    thread.join()
    assert signal.set_wakeup_fd(-1) == -1


@pytest.mark.slow
@pytest.mark.ray
def test_a_second_ctrl_c_leaves_nothing_of_a_local_cluster(tmp_path: Path) -> None:
    body = """
    from sts_pipelines.launch.cluster import ray_cluster
    from sts_pipelines.config.pipeline import ClusterConfig
    with ray_cluster(ClusterConfig(num_workers=1, use_gpu=False), num_cpus=1):
        import ray
        ray.get(ray.remote(lambda: None).remote())
        pathlib.Path(ready).with_name("worker").touch()
        signal.signal(signal.SIGINT, lambda number, frame: None)
        forever()"""
    with start(body, tmp_path, seconds_to_stop=600) as process:
        processes.wait_until((tmp_path / "worker").exists, process)
        below = processes.descendants(process.pid)
        assert any("raylet" in command for command in below.values())
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(0.5)
        processes.finish(process, seconds=60)
    assert process.returncode == 130
    deadline = time.monotonic() + 60
    while (left := [pid for pid in below if processes.is_running(pid)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [below[pid] for pid in left]
