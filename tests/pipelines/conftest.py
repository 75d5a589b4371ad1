"""One Ray cluster per test session, on loopback, and pipelines small enough for tests."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sts_pipelines.catalog import CATALOG
from sts_pipelines.config.cluster import ClusterConfig
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.launch import cluster
from sts_pipelines.launch.driver import launch
from sts_pipelines.launch.job import jobs_of
from tests import processes

os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")
cluster.prepare_environment(local=True)


def run(pipeline: PipelineConfig) -> Path:
    """Train and evaluate; the run's folder."""
    launch(jobs_of(pipeline), name=pipeline.run_name, folder=pipeline.folder)
    return pipeline.folder


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """A cluster with three logical CPUs: two for workers and some room for trials that only wait."""
    with cluster.ray_cluster(ClusterConfig(num_workers=1, use_gpu=False), num_cpus=3, dashboard=True):
        yield


@pytest.fixture(scope="session")
def imagenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dozen invented images per split in the layout of ImageNet."""
    root = tmp_path_factory.mktemp("imagenet")
    noise = np.random.default_rng(0).integers(0, 256, (4, 96, 80, 3), dtype=np.uint8)
    for split in ("train", "val"):
        for label, image in enumerate(noise):
            folder = root / split / f"class{label}"
            folder.mkdir(parents=True)
            for number in range(3):
                Image.fromarray(np.roll(image, number)).save(folder / f"{number}.jpg")
    return root


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., PipelineConfig]:
    """A pipeline of the catalog cut down to a second or two: tiny("byol-digits-sts", steps=6)."""

    def build(name: str, *, num_workers: int = 0, storage: Path = tmp_path, **changes: Any) -> PipelineConfig:
        pipeline = CATALOG[name].build()
        assert isinstance(pipeline, PipelineConfig)
        settings: dict[str, Any] = {"steps": 6, "epochs": None, "checkpoint_every_steps": 2, "log_every_steps": 1}
        settings |= {"verify_ranks_every_steps": 2} | changes
        training = replace(pipeline.training, **settings)
        workers = {"num_workers": num_workers, "use_gpu": False, "cpus_per_worker": 1.0, "storage_path": str(storage)}
        return replace(pipeline, training=training, cluster=replace(pipeline.cluster, **workers))

    return build


@pytest.fixture
def processes_below() -> Callable[[int], dict[int, str]]:
    """All processes that descend from a process, with their command lines."""
    return processes.descendants
