"""torchrun -m tests.gpu.run_ranks FOLDER: a training step on all GPUs, and how fast NCCL sums."""

import json
import os
import sys
import time
import warnings
from contextlib import ExitStack
from pathlib import Path

import torch
import torch.distributed as dist

from sts_core.distributed import rank, world_size
from sts_methods import LocalRuntime, fit
from tests.null_gpu.training import training_config

MEGABYTES = 100


def gigabytes_per_second(device: torch.device, times: int = 20) -> float:
    """Of the gradients that a rank has: 100 MB are about those of a ResNet-50."""
    gradients = torch.ones(MEGABYTES * 250_000, device=device)
    for number in range(times + 5):
        if number == 5:
            torch.cuda.synchronize()
            started = time.perf_counter()
        dist.all_reduce(gradients)
    torch.cuda.synchronize()
    return MEGABYTES / 1e3 * times / (time.perf_counter() - started)


def main(folder: Path) -> None:
    with ExitStack() as stack:
        if "NULLGPU_LIBRARY" in os.environ:
            from tests.null_gpu.counters import answer
            from tests.null_gpu.ranks import ddp_without_kernels
            from tests.null_gpu.training import counted_steps

            answer(0)
            stack.enter_context(ddp_without_kernels())
            stack.enter_context(counted_steps())
        runtime = LocalRuntime(folder / "run", progress=False)
        result = fit(training_config("byol", world_size=world_size(), log_every_steps=4), runtime)
        speed = gigabytes_per_second(runtime.device)
    found = {"rank": rank(), "device": str(runtime.device), "step": result.step, "loss": result.metrics["loss"]}
    (folder / f"rank-{rank()}.json").write_text(json.dumps(found | {"all-reduce GB/s": round(speed, 1)}))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]))
