"""Eight workers on fractions of a CPU: the shape that a machine with 8 GPUs has."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sts_methods.checkpoint import read_checkpoint
from sts_methods.optim import OptimizerConfig
from sts_pipelines.launcher import launch
from sts_pipelines.pipeline import PipelineConfig
from sts_pipelines.running import jobs_of

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    # Ray warns about its own deprecated settings and leaves sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]
Tiny = Callable[..., PipelineConfig]


def run(pipeline: PipelineConfig) -> dict[str, torch.Tensor]:
    pipeline = replace(pipeline, evaluation=replace(pipeline.evaluation, after_training=()))
    launch(jobs_of(pipeline), name=pipeline.run_name, folder=pipeline.folder)
    state: dict[str, torch.Tensor] = read_checkpoint(pipeline.folder / "checkpoints" / "step-00000002")["method"]
    return state


def test_eight_workers_on_quarters_of_a_cpu_equal_one(ray_cluster: None, tiny: Tiny, tmp_path: Path) -> None:
    settings = {"steps": 2, "optimizer": OptimizerConfig(lr=0.01)}
    eight = tiny("byol-digits-sts", num_workers=8, storage=tmp_path / "eight", **settings)
    eight = replace(eight, cluster=replace(eight.cluster, cpus_per_worker=0.25))
    many, one = run(eight), run(tiny("byol-digits-sts", storage=tmp_path / "one", **settings))
    meta = read_checkpoint(eight.folder / "checkpoints" / "step-00000002")["meta"]
    assert meta["world_size"] == 8
    for name in one:
        # Sums in another order differ in the last digits, and every two steps make ten times as much of it.
        assert torch.allclose(many[name].double(), one[name].double(), rtol=1e-3, atol=2e-4), name
