"""python -m tests.null_gpu.run_groups: what collectives do with tensors of the host and of the GPU, in either group.

Prints by group and device the number of NCCL's collectives, of copies, and where the result is.
"""

import json
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from sts_core.distributed import gather_batch, sum_over_ranks_
from sts_methods.runs.runtime import join_process_group
from tests.null_gpu.counters import counted
from tests.null_gpu.ranks import rank_zero_of

GROUPS = {"Ray Train": "nccl", "torchrun": "cpu:fake,cuda:nccl"}
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"sum": sum_over_ranks_, "gather": gather_batch}


def exchanged(backend: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with rank_zero_of(8, backend):
        for name, function in FUNCTIONS.items():
            for device in ("cpu", "cuda:0"):
                case: dict[str, Any] = {}
                tensor = torch.zeros(4, 3, device=device)
                with counted(case, "counts"):
                    result = function(tensor)
                counts = case["counts"]
                found[f"{name} {device}"] = [counts["collectives"], counts["copies"] > 0, str(result.device)]
    return found


def joined() -> str:
    """The backends of the group that a run under torchrun joins."""
    alone = {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    os.environ |= alone
    join_process_group()
    return str(dist.get_backend_config())


if __name__ == "__main__":
    found = {group: exchanged(backend) for group, backend in GROUPS.items()}
    print(json.dumps({"exchanged": found, "joined": joined()}), flush=True)
