"""An elastic run with room for one worker gets a second machine and loses it: python changing_cluster.py STORAGE.

It ends when there were checkpoints of one, two and again one worker. A process of its own, since it needs a cluster of
its own.
"""

import os
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from sts_methods import OptimizerConfig
from sts_methods.runs.checkpoint import CheckpointStore
from sts_pipelines.catalog import CATALOG
from sts_pipelines.config.cluster import ClusterConfig
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.launch import driver
from sts_pipelines.launch.cluster import prepare_environment


def looking_often(cluster: ClusterConfig) -> Any:
    scaling = launcher_scaling(cluster)
    scaling.elastic_resize_monitor_interval_s = 2.0  # a minute by default
    return scaling


def elastic(storage: Path) -> PipelineConfig:
    pipeline = CATALOG["byol-digits-sts"].build()
    assert isinstance(pipeline, PipelineConfig)
    training = replace(pipeline.training, steps=1_000_000, epochs=None, checkpoint_every_steps=50, log_every_steps=1)
    training = replace(training, keep_checkpoints=10_000, optimizer=OptimizerConfig(lr=0.01), global_batch_size=48)
    cluster = ClusterConfig(num_workers=2, min_workers=1, use_gpu=False, storage_path=str(storage))
    evaluation = replace(pipeline.evaluation, after_training=())
    return replace(pipeline, training=training, cluster=cluster, evaluation=evaluation)


def wait_for_workers(folder: Path, amount: int, run: threading.Thread) -> None:
    """Until a checkpoint of so many workers is there."""
    store = CheckpointStore(folder / "checkpoints")
    while (state := store.latest()) is None or state["meta"]["world_size"] != amount:
        assert run.is_alive()
        time.sleep(0.5)


if __name__ == "__main__":
    launcher_scaling, driver.scaling = driver.scaling, looking_often
    pipeline = elastic(Path(sys.argv[1]))
    prepare_environment(local=True)  # before Ray is imported
    import ray
    from ray.cluster_utils import Cluster

    machines = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    ray.init(address=machines.address, log_to_driver=False, logging_level="ERROR")
    job = driver.Job(label="elastic", pipeline=pipeline, folder=pipeline.folder)
    run = threading.Thread(target=driver.launch, args=([job],), kwargs={"name": "elastic", "folder": job.folder})
    run.start()
    wait_for_workers(job.folder, 1, run)
    second = machines.add_node(num_cpus=1)
    wait_for_workers(job.folder, 2, run)
    machines.remove_node(second, allow_graceful=False)
    wait_for_workers(job.folder, 1, run)
    print("one worker again", flush=True)
    ray.shutdown()  # the run loses its cluster, and may end this process before the next lines do
    machines.shutdown()
    os._exit(0)
