"""Ray Train workers on null GPUs: `sts run` gives each a GPU and NCCL, and a run that lost its end resumes there."""

import json
import sys
from pathlib import Path

import pytest

from sts_eval import read_results
from sts_methods import read_checkpoint
from tests import processes
from tests.null_gpu import machine


@pytest.mark.ray
@pytest.mark.slow
def test_ray_workers_train_resume_and_evaluate_on_a_gpu_each(tmp_path: Path) -> None:
    # Ray counts GPUs by NVML, which is not there, and clears LD_PRELOAD for its workers unless it is told not to.
    ray = {"RAY_OVERRIDE_RESOURCES": '{"GPU": 2}', "RAY_LD_PRELOAD_ON_WORKERS": "1"}
    command = [sys.executable, "-m", "tests.null_gpu.run_ray", tmp_path]
    done = processes.run(command, env=machine.environment(num_gpus=2) | ray)
    assert done.returncode == 0, done.stderr[-6000:]
    assert "by 2 Ray workers on GPUs of this machine" in done.stderr
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    assert [(rank["device"], rank["current device"]) for rank in ranks] == [("cuda:0", 0), ("cuda:1", 1)]
    for rank in ranks:
        assert rank["backend"] == "nccl"
        first, resumed = rank["collectives"]
        assert (len(first), len(resumed)) == (4, 2), "the last checkpoint was lost, the one of step 2 was restored"
        assert min(first + resumed) > 10
    (folder,) = tmp_path.glob("byol-digits-sts-*")
    assert {entry["network"] for entry in read_results(folder).entries} == {"teacher", "student"}
    meta = read_checkpoint(folder / "checkpoints" / "step-00000002")["meta"]
    assert (meta["step"], meta["world_size"]) == (2, 2)
