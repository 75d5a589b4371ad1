"""Processes that torchrun starts on null GPUs: gloo between them is real."""

import json
import sys
from pathlib import Path

import pytest

from tests import processes
from tests.null_gpu import machine


@pytest.mark.slow
def test_torchrun_trains_and_evaluates_on_one_gpu_for_each_process(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = machine.environment(num_gpus=2) | {"GLOO_SOCKET_IFNAME": "lo"}
    done = processes.run([*torchrun, "-m", "tests.null_gpu.run_torchrun", tmp_path], env=environment)
    assert done.returncode == 0, done.stderr[-6000:]
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    assert [rank["device"] for rank in ranks] == ["cuda:0", "cuda:1"]
    for rank in ranks:
        assert rank["backend"] == "cpu:gloo,cuda:nccl"
        assert rank["sent from"] == ["cpu", "cuda"]
        assert rank["a sum on the CPU"] == [2.0, 2.0, 2.0]  # by gloo, which computes
        assert rank["collectives"] > 0
        assert rank["step"] == 4
