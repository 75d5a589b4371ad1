"""Kills of a worker, the driver and the whole local cluster, a torn checkpoint: no bit changes. A stopped worker."""

import json
import os
import random
import re
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from sts_methods.runs.checkpoint import read_checkpoint
from sts_pipelines.cli.main import main
from tests import processes

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(900),  # on a machine that does much else
    # Ray warns about its own deprecated settings and leaves sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]
Below = Callable[[int], dict[int, str]]
STEPS = 105
"""Workers keep running for about two seconds, or 20 steps, when their driver is killed: they must not reach the end."""
FLAGS = (
    *("--cluster.num-workers", "2"),
    *("--steps", str(STEPS), "--checkpoint-every-steps", "4", "--log-every-steps", "1"),
    *("--verify-ranks-every-steps", "4", "--keep-checkpoints", "20", "--evaluation.after-training", ""),
)


def arguments(storage: Path) -> list[str]:
    return ["run", "moco-digits-sts", *FLAGS, "--cluster.storage-path", str(storage / "runs")]


def start(storage: Path, *more: str) -> processes.Process:
    command = [sys.executable, "-m", "sts_pipelines", *arguments(storage), *more]
    home = storage / "home"
    home.mkdir(parents=True, exist_ok=True)
    with (storage / "stderr.txt").open("ab") as errors:
        environment = os.environ | {"HOME": str(home)}
        return processes.Process(command, stdout=processes.DEVNULL, stderr=errors, env=environment, cwd=home)


def errors_of(storage: Path) -> str:
    return (storage / "stderr.txt").read_text()[-2000:]


def folder_of(storage: Path) -> Path:
    (folder,) = (storage / "runs").glob("moco-digits-sts-*")
    return folder


def launches(storage: Path) -> int:
    """When the newest launch wrote down what it is about to do; 0 before any has."""
    found = list((storage / "runs").glob("moco-digits-sts-*/plan.json"))
    return found[0].stat().st_mtime_ns if found else 0


def wait_for_step(storage: Path, step: int, process: processes.Process, *, before: int) -> None:
    """Until the launch after `before` is under way and has logged `step`; steps of earlier launches are not its own."""

    def reached() -> bool:
        if launches(storage) <= before:
            return False
        metrics = folder_of(storage) / "metrics.jsonl"
        return metrics.exists() and len(metrics.read_text().splitlines()) >= step

    processes.wait_until(reached, process, errors=partial(errors_of, storage))


def kill(pids: list[int]) -> None:
    for pid in pids:
        processes.kill(pid)


def finish(process: processes.Process, storage: Path, *, code: int = 0) -> None:
    processes.finish(process, errors=partial(errors_of, storage))
    assert process.returncode == code, errors_of(storage)


def final_weights(storage: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = read_checkpoint(folder_of(storage) / "checkpoints" / f"step-{STEPS:08d}")["method"]
    return state


def test_killed_workers_drivers_and_clusters_and_a_torn_checkpoint_change_no_bit(
    tmp_path: Path, ray_cluster: None, processes_below: Below
) -> None:
    calm, chaotic = tmp_path / "calm", tmp_path / "chaotic"
    assert main(arguments(calm)) == 0
    draw = random.Random(5)
    first, second, third = (draw.randrange(start, start + 15) for start in (5, 35, 75))
    started: list[int] = []
    try:
        driver = start(chaotic)
        wait_for_step(chaotic, first, driver, before=0)
        workers = [pid for pid, command in processes_below(driver.pid).items() if "RayTrainWorker" in command]
        kill([draw.choice(workers)])  # Ray starts the group again
        wait_for_step(chaotic, second, driver, before=0)
        started += processes_below(driver.pid)
        kill([driver.pid])  # the driver alone: its cluster notices and goes
        finish(driver, chaotic, code=-signal.SIGKILL)

        before = launches(chaotic)
        driver = start(chaotic)
        wait_for_step(chaotic, third, driver, before=before)
        assert json.loads((folder_of(chaotic) / "plan.json").read_text())["first_step"] > 0
        cluster = list(processes_below(driver.pid))
        started += cluster
        kill([*cluster, driver.pid])  # everything at once
        finish(driver, chaotic, code=-signal.SIGKILL)

        newest = max((folder_of(chaotic) / "checkpoints").glob("step-*"))
        torn = (newest / "state.pt").read_bytes()[:-1]
        (newest / "state.pt").write_bytes(torn)
        finish(start(chaotic), chaotic)
    finally:
        kill(started)
    expected, found = final_weights(calm), final_weights(chaotic)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert len((folder_of(chaotic) / "metrics.jsonl").read_text().splitlines()) == STEPS
    # Nothing was written but the run folder, and compiled kernels for all runs to come.
    assert [path.name for path in (chaotic / "runs").iterdir()] == [folder_of(chaotic).name]
    assert {path.name for path in (chaotic / "home").iterdir()} <= {".cache"}


def test_a_worker_that_stops_without_dying_is_named_and_the_run_goes_on_without_it(
    tmp_path: Path, processes_below: Below
) -> None:
    driver = start(tmp_path, "--cluster.stuck-after-seconds", "10")
    wait_for_step(tmp_path, 10, driver, before=0)
    stopped = next(pid for pid, command in processes_below(driver.pid).items() if "RayTrainWorker" in command)
    os.kill(stopped, signal.SIGSTOP)
    finish(driver, tmp_path)
    told = (tmp_path / "stderr.txt").read_text()
    assert re.search(rf"rank \d \(process {stopped}\) does not answer, last seen at \S+:\d+ in \w+", told), told[-2000:]
    assert not processes.is_running(stopped)
    assert final_weights(tmp_path)
