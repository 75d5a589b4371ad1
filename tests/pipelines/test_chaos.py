"""Kills of the driver and of the whole local cluster at random steps, and a torn checkpoint: no bit changes."""

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

from sts_methods.checkpoint import read_checkpoint

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]
Below = Callable[[int], dict[int, str]]
STEPS = 40
FLAGS = (
    *("--steps", str(STEPS), "--checkpoint-every-steps", "4", "--log-every-steps", "1", "--data.image-size", "8"),
    *("--verify-ranks-every-steps", "4", "--keep-checkpoints", "20", "--evaluation.after-training", ""),
)


def start(storage: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "sts_pipelines.main", "run", "moco-digits-sts", *FLAGS]
    command += ["--cluster.storage-path", str(storage)]
    with (storage / "stderr.txt").open("ab") as errors:
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)


def folder_of(storage: Path) -> Path:
    return next(path for path in storage.iterdir() if path.name.startswith("moco-digits-sts"))


def wait_for_step(storage: Path, step: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and process.poll() is None:
        found = list(storage.glob("moco-digits-sts-*/metrics.jsonl"))
        if found and len(found[0].read_text().splitlines()) >= step:
            return
        time.sleep(0.05)
    raise AssertionError(f"step {step} was not reached: {(storage / 'stderr.txt').read_text()[-2000:]}")


def kill(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def finish(process: subprocess.Popen[bytes], storage: Path) -> None:
    assert process.wait(timeout=400) == 0, (storage / "stderr.txt").read_text()[-2000:]


def final_weights(storage: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = read_checkpoint(folder_of(storage) / "checkpoints" / f"step-{STEPS:08d}")["method"]
    return state


def test_killed_drivers_and_clusters_and_a_torn_checkpoint_change_no_bit(
    tmp_path: Path, processes_below: Below
) -> None:
    calm, chaotic = tmp_path / "calm", tmp_path / "chaotic"
    calm.mkdir()
    chaotic.mkdir()
    finish(start(calm), calm)
    first, second = sorted(random.Random(5).sample(range(5, STEPS - 5), 2))
    started: list[int] = []
    try:
        driver = start(chaotic)
        wait_for_step(chaotic, first, driver)
        started += processes_below(driver.pid)
        kill([driver.pid])  # the driver alone: its cluster notices and goes
        driver.wait()

        driver = start(chaotic)
        wait_for_step(chaotic, second, driver)
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
