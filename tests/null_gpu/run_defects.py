"""python -m tests.null_gpu.run_defects: plants what the null GPU should see, and prints what it saw."""

import ctypes
import json
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.null_gpu.counters import answer, counted, origins
from tests.null_gpu.ranks import rank_zero_of


def error(cause: Callable[[], object]) -> str:
    """The error that something raises, "" if it does not."""
    try:
        cause()
    except Exception as raised:
        return f"{type(raised).__name__}: {raised}"
    return ""


def exit_signal(cause: Callable[[], object]) -> int:
    """The signal that ends a copy of this process which does something, 0 if none does."""
    child = os.fork()
    if child == 0:
        cause()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def counts(cause: Callable[[], object]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with counted(found, "it"):
        cause()
    return found["it"]


class CpuBuffer(nn.Module):
    """A tensor that does not move with the module, as one that was not registered."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.offset = torch.ones(3)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight + self.offset


def reduce_host_memory() -> None:
    """What torch refuses to do, done past it: NCCL gets a pointer to host memory."""
    library = ctypes.CDLL(os.environ["NULLGPU_LIBRARY"])
    memory, group = ctypes.create_string_buffer(64), (ctypes.c_int * 2)(8, 0)
    library.ncclAllReduce(memory, memory, ctypes.c_size_t(16), 7, 0, group, None)


def single_rank() -> dict[str, Any]:
    x, on_host = torch.ones(3, 5, device="cuda"), torch.arange(15.0).view(3, 5)
    with origins(within="run_defects") as places:
        x.sum().item()
    answer(None)
    return {
        "devices": torch.cuda.device_count(),
        "a copy there and back": torch.equal(on_host.cuda().cpu(), on_host),
        "nothing": counts(lambda: None),
        "one launch": counts(lambda: x.add_(1)),
        "two launches": counts(lambda: x.add_(1).mul_(2)),
        "a product": counts(lambda: x @ x.T),
        "an item": counts(lambda: x.sum().item()),
        "a sum that is not read": counts(lambda: x.sum()),
        "where the item was read": dict(places),
        "a pageable copy": counts(lambda: on_host.cuda(non_blocking=True)),
        "a pinned copy": counts(lambda: on_host.pin_memory().cuda(non_blocking=True)),
        "a CPU buffer": error(lambda: CpuBuffer().cuda()(torch.ones(3, device="cuda"))),
        "too much memory": error(lambda: torch.empty(100 << 30, dtype=torch.uint8, device="cuda")),
        "peak of a GiB": counts(lambda: torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))["peak_bytes"],
        "host memory in NCCL": exit_signal(reduce_host_memory),
    }


def eight_ranks() -> dict[str, Any]:
    with rank_zero_of(8):
        answer(None)
        mine, x = torch.arange(3).cuda(), torch.ones(1000, device="cuda")
        all_of_them = torch.empty(24, dtype=torch.int64, device="cuda")
        sent = counts(lambda: (dist.all_reduce(x), dist.all_gather_into_tensor(all_of_them, mine)))
        alone = {
            "sent": sent,
            "gathered": all_of_them.tolist(),
            "a CPU tensor": error(lambda: dist.all_reduce(torch.ones(3))),
        }
    with rank_zero_of(8, "cpu:fake,cuda:nccl"):
        return alone | {"a CPU tensor beside gloo": error(lambda: dist.all_reduce(torch.ones(3)))}


if __name__ == "__main__":
    print(json.dumps(single_rank() | eight_ranks()))
