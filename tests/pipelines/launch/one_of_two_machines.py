"""One rank of two that share nothing but a URI: python one_of_two_machines.py RANK RENDEZVOUS CONFIG URI FOLDER."""

import sys
from pathlib import Path

import torch.distributed as dist

from sts_pipelines.cli.resolve import resolve
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.launch.job import Job
from sts_pipelines.launch.runtime import StorageCopy, build_runtime
from sts_pipelines.launch.storage import Mirror
from sts_pipelines.launch.worker import train_job

if __name__ == "__main__":
    rank, rendezvous, config, uri, folder = sys.argv[1:]
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=int(rank), world_size=2)
    pipeline = resolve(config)
    assert isinstance(pipeline, PipelineConfig)
    job = Job(label="two", pipeline=pipeline, folder=Path(folder))
    storage = StorageCopy(Mirror(uri, job.folder))
    train_job(job, build_runtime(job, storage, progress=False), storage)
    dist.destroy_process_group()
