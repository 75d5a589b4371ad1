"""Kills of a worker, the driver and the whole local cluster at random steps, and a torn checkpoint: no bit changes."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sts_methods.runs.checkpoint import read_checkpoint

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(3600),  # on a machine that does much else; nothing below has a limit of its own
]
Below = Callable[[int], dict[int, str]]
STEPS = 160
"""Workers go on for about two seconds, or 20 steps, when their driver is killed: they must not reach the end."""
FLAGS = (
    *("--steps", str(STEPS), "--checkpoint-every-steps", "4", "--log-every-steps", "1"),
    *("--verify-ranks-every-steps", "4", "--keep-checkpoints", "20", "--evaluation.after-training", ""),
)


def start(storage: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "sts_pipelines", "run", "moco-digits-sts", *FLAGS]
    command += ["--cluster.storage-path", str(storage / "runs")]
    home = storage / "home"
    home.mkdir(parents=True, exist_ok=True)
    with (storage / "stderr.txt").open("ab") as errors:
        return subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=errors, env=os.environ | {"HOME": str(home)}, cwd=home
        )


def errors_of(storage: Path) -> str:
    return (storage / "stderr.txt").read_text()[-2000:]


def folder_of(storage: Path) -> Path:
    (folder,) = (storage / "runs").glob("moco-digits-sts-*")
    return folder


def launches(storage: Path) -> int:
    """When the newest launch wrote down what it is about to do; 0 before any has."""
    found = list((storage / "runs").glob("moco-digits-sts-*/plan.json"))
    return found[0].stat().st_mtime_ns if found else 0


def wait_for_step(storage: Path, step: int, process: subprocess.Popen[bytes], *, before: int) -> None:
    """Until the launch after `before` is under way and has logged `step`; steps of earlier launches are not its own."""
    while True:
        running = process.poll() is None
        if launches(storage) > before:
            metrics = folder_of(storage) / "metrics.jsonl"
            if metrics.exists() and len(metrics.read_text().splitlines()) >= step:
                return
        assert running, f"step {step} was not reached: {errors_of(storage)}"
        time.sleep(0.05)


def kill(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def finish(process: subprocess.Popen[bytes], storage: Path) -> None:
    assert process.wait() == 0, errors_of(storage)


def final_weights(storage: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = read_checkpoint(folder_of(storage) / "checkpoints" / f"step-{STEPS:08d}")["method"]
    return state


def test_killed_workers_drivers_and_clusters_and_a_torn_checkpoint_change_no_bit(
    tmp_path: Path, processes_below: Below
) -> None:
    calm, chaotic = tmp_path / "calm", tmp_path / "chaotic"
    finish(start(calm), calm)
    draw = random.Random(5)
    first, second, third = (draw.randrange(start, start + 20) for start in (5, 45, 85))
    started: list[int] = []
    try:
        driver = start(chaotic)
        wait_for_step(chaotic, first, driver, before=0)
        workers = [pid for pid, command in processes_below(driver.pid).items() if "RayTrainWorker" in command]
        kill([draw.choice(workers)])  # Ray starts the group again
        wait_for_step(chaotic, second, driver, before=0)
        started += processes_below(driver.pid)
        kill([driver.pid])  # the driver alone: its cluster notices and goes
        driver.wait()

        before = launches(chaotic)
        driver = start(chaotic)
        wait_for_step(chaotic, third, driver, before=before)
        assert json.loads((folder_of(chaotic) / "plan.json").read_text())["first_step"] > 0
        cluster = list(processes_below(driver.pid))
        started += cluster
        kill([*cluster, driver.pid])  # everything at once
        driver.wait()

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
    for storage in (calm, chaotic):  # nothing was written but the run folder, and compiled kernels for all runs to come
        assert [path.name for path in (storage / "runs").iterdir()] == [folder_of(storage).name]
        assert {path.name for path in (storage / "home").iterdir()} <= {".cache"}
