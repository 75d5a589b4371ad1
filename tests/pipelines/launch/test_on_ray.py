"""Ray Train: every family on two workers equals one, so do eight workers, and elastic runs keep the batch."""

import itertools
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sts_eval import read_results
from sts_methods.runs.checkpoint import read_checkpoint
from sts_methods.training.optimizers import OptimizerConfig
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.errors import RunError
from sts_pipelines.launch.driver import launch
from sts_pipelines.launch.job import Job, jobs_of
from tests import processes

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    # Ray warns about its own deprecated settings and leaves sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]
Tiny = Callable[..., PipelineConfig]
FAMILIES = ("byol-digits-sts", "moco-digits-sts", "fixmatch-digits-sts")
STEPS = 6


def weights(folder: Path, step: int) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = read_checkpoint(folder / "checkpoints" / f"step-{step:08d}")["method"]
    return state


def difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[name].double() - b[name].double()).abs().max()) for name in a if a[name].numel())


def family_jobs(tiny: Tiny, storage: Path, *, num_workers: int) -> list[Job]:
    # A small learning rate, since large ones amplify rounding: sums in another order soon become other weights.
    changes = {"steps": STEPS, "checkpoint_every_steps": 2, "keep_checkpoints": 3}
    pipelines = [
        tiny(name, num_workers=num_workers, storage=storage, optimizer=OptimizerConfig(lr=0.01), **changes)
        for name in FAMILIES
    ]
    return [Job(label=p.name, pipeline=p, folder=p.folder) for p in pipelines]


def test_every_family_on_two_workers_equals_one(ray_cluster: None, tmp_path: Path, tiny: Tiny) -> None:
    jobs = family_jobs(tiny, tmp_path / "two", num_workers=2)
    launch(jobs, name="families", folder=tmp_path / "families")
    for alone, job in zip(family_jobs(tiny, tmp_path / "one", num_workers=0), jobs, strict=True):
        launch([alone], name=alone.pipeline.run_name, folder=alone.folder)
        # Sums in another order differ in the last digits, and every two steps make ten times as much of it.
        assert difference(weights(job.folder, 2), weights(alone.folder, 2)) < 2e-4, job.label
        assert read_results(job.folder).entries
        assert read_checkpoint(job.folder / "checkpoints" / f"step-{STEPS:08d}")["meta"]["world_size"] == 2


def test_eight_workers_on_quarters_of_a_cpu_equal_one(ray_cluster: None, tiny: Tiny, tmp_path: Path) -> None:
    settings = {"steps": 2, "optimizer": OptimizerConfig(lr=0.01)}
    one = tiny("byol-digits-sts", storage=tmp_path / "one", **settings)
    one = replace(one, evaluation=replace(one.evaluation, after_training=()))
    cluster = replace(one.cluster, num_workers=8, cpus_per_worker=0.25, storage_path=str(tmp_path / "eight"))
    eight = replace(one, cluster=cluster)
    for pipeline in (one, eight):
        launch(jobs_of(pipeline), name=pipeline.run_name, folder=pipeline.folder)
    assert read_checkpoint(eight.folder / "checkpoints" / "step-00000002")["meta"]["world_size"] == 8
    assert difference(weights(eight.folder, 2), weights(one.folder, 2)) < 2e-4


def wait_for_free_cpus(amount: float) -> None:
    """Until what earlier tests used is given back: an elastic run takes what is free at its start."""
    import ray

    while ray.available_resources().get("CPU", 0.0) < amount:
        time.sleep(0.2)


def test_an_elastic_run_takes_the_workers_there_are_and_keeps_the_batch(
    ray_cluster: None, tiny: Tiny, tmp_path: Path
) -> None:
    settings = {"global_batch_size": 48, "steps": 4, "optimizer": OptimizerConfig(lr=0.01)}
    pipeline = tiny("byol-digits-sts", num_workers=4, storage=tmp_path / "elastic", **settings)
    cluster = replace(pipeline.cluster, min_workers=1)  # of four, where the session's cluster has room for three
    pipeline = replace(pipeline, cluster=cluster, evaluation=replace(pipeline.evaluation, after_training=()))
    job = Job(label="elastic", pipeline=pipeline, folder=pipeline.folder)
    wait_for_free_cpus(3.0)
    launch([job], name=pipeline.run_name, folder=pipeline.folder)
    newest = job.folder / "checkpoints" / "step-00000004"
    assert read_checkpoint(newest)["meta"]["world_size"] == 3
    expected = weights(job.folder, 4)
    shutil.rmtree(newest)  # two workers are lost at step 2
    alone = replace(pipeline, cluster=replace(cluster, num_workers=0, min_workers=None))
    with pytest.warns(UserWarning, match="resuming on 1 worker what ran on 3: the batches and draws are the same"):
        launch([replace(job, pipeline=alone)], name="alone", folder=job.folder)
    assert read_checkpoint(newest)["meta"]["world_size"] == 1
    assert difference(weights(job.folder, 4), expected) < 2e-4


def test_an_error_that_no_restart_can_cure_ends_the_run_in_one_sentence(
    ray_cluster: None, tmp_path: Path, tiny: Tiny
) -> None:
    pipeline = tiny("byol-digits-sts", num_workers=2)
    data = replace(pipeline.training.data, dataset="arrays", root=str(tmp_path / "nowhere.npz"))
    pipeline = replace(pipeline, training=replace(pipeline.training, data=data))
    job = Job(label="x", pipeline=pipeline, folder=tmp_path / "x")
    with pytest.raises(RunError, match=r"nowhere\.npz"):
        launch([job], name="x", folder=job.folder)


def test_an_elastic_run_follows_machines_that_join_and_die(tmp_path: Path) -> None:
    script = Path(__file__).with_name("changing_cluster.py")
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as ray_folder:  # a socket's path may have 107 bytes
        command = [sys.executable, script, tmp_path]
        environment = os.environ | {"RAY_TMPDIR": ray_folder}  # or it would be the cluster that others here find
        finished = processes.run(command, env=environment)
    assert "one worker again" in finished.stdout, finished.stderr[-2000:]
    (folder,) = tmp_path.glob("byol-digits-sts-*")
    world_sizes = [read_checkpoint(path)["meta"]["world_size"] for path in sorted(folder.glob("checkpoints/step-*"))]
    assert [size for size, _ in itertools.groupby(world_sizes)] == [1, 2, 1]
    steps = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, len(steps) + 1))
