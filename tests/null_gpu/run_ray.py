"""python -m tests.null_gpu.run_ray FOLDER: `sts run` with two Ray Train workers, each with a null GPU of its own.

Every worker trains and evaluates, loses the last checkpoint and runs once more; rank-R.json holds what it saw.
"""

import json
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from sts_pipelines.launch.job import Job
from sts_pipelines.launch.runtime import worker_device
from sts_pipelines.launch.worker import worker
from tests.null_gpu.counters import answer
from tests.null_gpu.ranks import ddp_without_kernels
from tests.null_gpu.training import counted_steps

FOLDER = "TESTS_NULL_GPU_FOLDER"
PIPELINE = ["byol-digits-sts", "--steps", "4", "--checkpoint-every-steps", "2", "--cluster.num-workers", "2"]
PIPELINE += ["--cluster.use-gpu", "true", "--cluster.max-failures", "0", "--cluster.storage-path"]
EVALUATION = ["--evaluation.after-training", "knn", "--evaluation.knn.allow-missing-classes", "true"]


@contextmanager
def real_meetings() -> Iterator[None]:
    """Objects and barriers go through gloo: in NCCL they need a kernel that computes."""
    gloo = dist.new_group(backend="gloo")
    with ExitStack() as stack:
        for name in ("all_gather_object", "broadcast_object_list", "barrier"):
            stack.enter_context(patch.object(dist, name, partial(getattr(dist, name), group=gloo)))
        yield


def worker_on_null_gpu(config: dict[str, Any]) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    answer(0, up_to_bytes=1 << 40)
    with real_meetings(), ddp_without_kernels():
        runs = []
        for _ in range(2):
            with counted_steps() as steps:
                failed = worker(config)
            runs.append([step["gradients"]["collectives"] for step in steps if "gradients" in step])
            dist.barrier()
            if dist.get_rank() == 0:
                shutil.rmtree(Job.from_plain(config["jobs"][0]).folder / "checkpoints" / "step-00000004")
            dist.barrier()
    seen = {
        "device": str(worker_device()),
        "current device": torch.cuda.current_device(),
        "backend": dist.get_backend(),
        "collectives": runs,
    }
    (Path(os.environ[FOLDER]) / f"rank-{dist.get_rank()}.json").write_text(json.dumps(seen))
    return failed


def main(folder: str) -> int:
    os.environ[FOLDER] = folder  # for the workers
    from sts_pipelines.cli.main import main as sts

    with patch("sts_pipelines.launch.driver.worker", worker_on_null_gpu):
        return sts(["run", *PIPELINE, folder, *EVALUATION])


if __name__ == "__main__":
    from tests.null_gpu import run_ray  # by whose name, and not as __main__, the workers find it

    sys.exit(run_ray.main(sys.argv[1]))
