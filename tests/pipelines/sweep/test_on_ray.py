"""Ray Tune over Ray Train: a killed sweep resumed, and a search that stops trials early without leaking anything."""

import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.config.sweep import GridConfig, SweepConfig
from sts_pipelines.errors import RunError
from sts_pipelines.sweep.run import run_sweep
from tests import processes

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(900),  # on a machine that does much else
    # Ray warns about its own deprecated settings and leaves sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning"),
]
Tiny = Callable[..., PipelineConfig]
Below = Callable[[int], dict[int, str]]


@pytest.fixture
def another_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Somebody else's Ray on the same machine."""
    start = "import pathlib, ray, sys; ray.init('local', num_cpus=1, include_dashboard=False, log_to_driver=False)\n"
    start += "pathlib.Path(sys.argv[1], 'started').touch(); sys.stdin.read()"
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:  # a socket's path may have 107 bytes
        environment = os.environ | {"RAY_TMPDIR": folder}
        with processes.Process([sys.executable, "-c", start, folder], env=environment, stdin=processes.PIPE) as other:
            processes.wait_until((Path(folder) / "started").exists, other)
            yield
            processes.finish(other)  # closes its input, which ends it


def test_a_search_stops_trials_and_frees_what_they_held(another_cluster: None, ray_cluster: None, tiny: Tiny) -> None:
    import ray

    pipeline = tiny("byol-digits-sts", num_workers=1, steps=8)
    pipeline = replace(pipeline, evaluation=replace(pipeline.evaluation, after_training=("knn",)))
    grid = GridConfig(search="asha", coordinates="m_eff-p", num_samples=4, max_concurrent=2)
    recipe = SweepConfig(pipeline=pipeline, sweep=grid)
    found = run_sweep(recipe)
    assert len(found) == 4
    finished = [outcome for outcome in found if outcome.value is not None]
    stopped = [outcome for outcome in found if outcome.stopped_at is not None]
    assert finished
    assert stopped
    assert len(finished) + len(stopped) == 4
    assert all(outcome.stopped_at < 8 for outcome in stopped if outcome.stopped_at is not None)
    deadline = time.monotonic() + 60
    while ray.available_resources().get("CPU") != 3.0 and time.monotonic() < deadline:
        time.sleep(0.5)
    assert ray.available_resources().get("CPU") == 3.0


def test_a_trial_resumes_after_itself_and_its_worker_were_killed_and_tune_leaves_nothing_behind(
    ray_cluster: None, tiny: Tiny, processes_below: Below, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.tune import registry

    monkeypatch.setenv("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "0")
    monkeypatch.delitem(sys.modules, "tensorboardX", raising=False)
    pipeline = tiny("byol-digits-sts", num_workers=1, steps=60)
    pipeline = replace(pipeline, evaluation=replace(pipeline.evaluation, after_training=("knn",)))
    grid = GridConfig(cells=((0.9, 0.5),), metric="knn/teacher/top1")
    killed: list[int] = []
    finished = threading.Event()

    def kill_both() -> None:
        for step, name in ((6, "ImplicitFunc"), (30, "RayTrainWorker")):  # Tune's process that waits, ours that trains
            while not any(len(path.read_text().splitlines()) >= step for path in tmp_path.glob("*/*/metrics.jsonl")):
                if finished.wait(0.05):
                    return
            killed.extend([pid for pid, command in processes_below(os.getpid()).items() if name in command][:1])
            processes.kill(killed[-1])

    killer = threading.Thread(target=kill_both, daemon=True)
    killer.start()
    threads = set(threading.enumerate())
    (outcome,) = run_sweep(SweepConfig(pipeline=pipeline, sweep=grid))
    finished.set()
    killer.join(timeout=60)
    assert len(killed) == 2
    assert outcome.value is not None
    (metrics,) = tmp_path.glob("*/*/metrics.jsonl")
    assert len(metrics.read_text().splitlines()) == 60
    left = {path.name for path in tmp_path.glob("*/.tune/*/*")}
    assert not [name for name in left if "tfevents" in name or name in ("result.json", "progress.csv")]
    assert "tensorboardX" not in sys.modules  # whose threads and hooks can wait for ever at the interpreter's exit
    assert not [thread for thread in set(threading.enumerate()) - threads if not thread.daemon]
    assert not registry._global_registry._atexit_handler_registered
    assert not registry._global_registry._registered


def test_an_interrupted_and_a_killed_sweep_finish_only_what_is_missing(tmp_path: Path, processes_below: Below) -> None:
    flags = ["--steps", "4", "--log-every-steps", "1", "--evaluation.after-training", "knn"]
    flags += ["--sweep.momenta", "0,0.9", "--sweep.preserve-probabilities", "0,0.5", "--sweep.cells-per-trial", "2"]
    flags += ["--cluster.num-workers", "1", "--cluster.storage-path", str(tmp_path / "runs")]
    flags += ["--sweep.metric", "knn/teacher/top1", "--sweep.max-concurrent", "1"]
    command = [sys.executable, "-m", "sts_pipelines", "sweep", "byol-digits-p-by-m", *flags]
    errors = tmp_path / "stderr.txt"

    def start_and_wait_for(pattern: str, count: int) -> processes.Process:
        with errors.open("wb") as stderr:
            # A session of its own, as a terminal's Ctrl-C goes to all processes in the foreground; and what a shell
            # starts in the background ignores SIGINT, as would its children.
            driver = processes.Process(
                command,
                stdout=processes.DEVNULL,
                stderr=stderr,
                start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        processes.wait_until(
            lambda: len(list(tmp_path.glob(f"runs/*/*/{pattern}"))) >= count, driver, errors=errors.read_text
        )
        return driver

    driver = start_and_wait_for("finished.json", 1)
    below = processes_below(driver.pid)
    loopback = {"0100007F", "0000000000000000FFFF00000100007F", f"{0:024}01000000"}  # 127.0.0.1 twice, ::1
    assert listening({driver.pid, *below}) <= loopback
    os.killpg(driver.pid, signal.SIGINT)
    processes.finish(driver, seconds=60, errors=errors.read_text)
    assert driver.returncode == 130, errors.read_text()[-2000:]
    assert errors.read_text().splitlines()[-1].startswith("sts: stopped")  # at once only where all takes very long
    deadline = time.monotonic() + 60
    while (left := [pid for pid in below if processes.is_running(pid)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/*/finished.json")}

    driver = start_and_wait_for("metrics.jsonl", 3)
    for pid in (driver.pid, *processes_below(driver.pid)):
        processes.kill(pid)
    processes.finish(driver)

    again = processes.run(command)
    assert again.returncode == 0, again.stderr[-2000:]
    assert "0 finished before" not in again.stdout
    (folder,) = (tmp_path / "runs").iterdir()
    assert len(list(folder.glob("*/finished.json"))) == 4
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert (folder / "sweep.csv").read_text().count("\n") == 5


def listening(processes: set[int]) -> set[str]:
    """The addresses at which any of `processes` takes connections, as the kernel writes them."""
    inodes = set()
    for pid in processes:
        for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
            with contextlib.suppress(OSError):  # it ended while we looked
                inodes.add(os.readlink(descriptor).removeprefix("socket:[").removesuffix("]"))
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:  # TCP_LISTEN
                found.add(fields[1].partition(":")[0])
    assert found
    return found


def test_a_sweep_that_ray_itself_ends_is_one_line(
    ray_cluster: None, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray import tune

    def out_of_memory(tuner: object) -> None:
        raise RuntimeError("3 workers were killed\nand much more")

    monkeypatch.setattr(tune.Tuner, "fit", out_of_memory)
    recipe = SweepConfig(pipeline=tiny("byol-digits-sts", num_workers=1), sweep=GridConfig(cells=((0.9, 0.5),)))
    with pytest.raises(RunError, match=r"Ray stopped the sweep \(3 workers were killed\): rerun the same command"):
        run_sweep(recipe)
