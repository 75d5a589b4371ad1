"""Signals end sts whatever it is stuck in: after a while by themselves, and at once when they come again."""

import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from sts_methods import CheckpointStore
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
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores SIGINT,
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and what nohup starts SIGHUP
list_.run = run
{before}
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


def start(body: str, tmp_path: Path, *, seconds_to_stop: float, before: str = "") -> processes.Process:
    script = SCRIPT.format(body=body, before=before)
    command = [*(sys.executable, "-c", script, "list"), seconds_to_stop, tmp_path / "ready"]
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("body", ["forever()", "stuck()"], ids=["waits", "is stuck"])
def test_sigterm_and_sighup_end_a_process_with_their_own_code(body: str, number: int, tmp_path: Path) -> None:
    with start(body, tmp_path, seconds_to_stop=2) as process:
        process.send_signal(number)
        _, errors = processes.finish(process, seconds=60)
    assert process.returncode == 128 + number
    assert errors.splitlines()[-1] == (STOPPED if body == "forever()" else LAST_LINE)


def test_nohup_s_choice_is_respected(tmp_path: Path) -> None:
    with start(
        "time.sleep(1)", tmp_path, seconds_to_stop=600, before="signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    ) as process:
        process.send_signal(signal.SIGHUP)
        processes.finish(process, seconds=60)
    assert process.returncode == 1  # what None makes of it: it ran to its end


FOR_EVER = ("--steps", "100000", "--log-every-steps", "1", "--checkpoint-every-steps", "100000")


def start_training(tmp_path: Path) -> processes.Process:
    command = [*(sys.executable, "-m", "sts_pipelines", "run", "byol-digits-sts"), *FOR_EVER]
    command += ["--cluster.storage-path", str(tmp_path)]
    process = processes.Process(command, stdout=processes.DEVNULL, stderr=processes.PIPE, text=True)
    processes.wait_until(lambda: any(tmp_path.glob("*/metrics.jsonl")), process, seconds=200)
    return process


def checkpoints(tmp_path: Path) -> list[int]:
    (folder,) = tmp_path.glob("byol-digits-sts-*")
    return CheckpointStore(folder / "checkpoints").steps()


@pytest.mark.slow
def test_sigterm_saves_a_checkpoint_before_the_end(tmp_path: Path) -> None:
    with start_training(tmp_path) as process:
        process.send_signal(signal.SIGTERM)
        _, errors = processes.finish(process, seconds=100)
    assert process.returncode == 143
    assert errors.splitlines()[-1] == STOPPED
    assert len(checkpoints(tmp_path)) == 1


@pytest.mark.slow
def test_sigusr1_saves_a_checkpoint_and_training_goes_on(tmp_path: Path) -> None:
    with start_training(tmp_path) as process:
        process.send_signal(signal.SIGUSR1)
        processes.wait_until(lambda: checkpoints(tmp_path) != [], process, seconds=100)
        (metrics,) = tmp_path.glob("*/metrics.jsonl")
        logged = len(metrics.read_text().splitlines())
        processes.wait_until(lambda: len(metrics.read_text().splitlines()) > logged, process, seconds=100)
        assert process.poll() is None


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
