"""One process that takes itself for rank 0 of many, on null GPUs: read inside that process."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # registers the backend "fake"
from torch.nn.parallel import DistributedDataParallel

from tests.null_gpu import counters

_rebuild_buckets = DistributedDataParallel._pre_forward


@contextmanager
def rank_zero_of(world_size: int, backend: str = "nccl") -> Iterator[None]:
    """A process group as a real rank 0 has it, whose other ranks hold what this one holds.

    Tensors on GPUs go through torch's own process group for NCCL. Alone it is what Ray Train makes, and a tensor on the
    CPU has nowhere to go; in "cpu:fake,cuda:nccl" torch's fake process group takes the place of gloo.
    """
    torch.cuda.set_device(0)
    counters.answer(0)
    if world_size == 1:
        yield
        return
    with ExitStack() as stack:
        stack.enter_context(ddp_without_kernels())
        for name, replacement in _ALONE.items():
            stack.enter_context(patch(name, replacement))
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=world_size)
        stack.callback(dist.destroy_process_group)
        yield


@contextmanager
def ddp_without_kernels() -> Iterator[None]:
    """DDP asks no kernel for the sizes of other ranks, and reads the buckets that it has copied to the device."""
    with (
        patch("torch.nn.parallel.distributed._verify_param_shape_across_processes", _nothing),
        patch("torch.nn.parallel.DistributedDataParallel._pre_forward", _pre_forward),
    ):
        yield


def _nothing(*_: object, **__: object) -> bool:
    return True


def _gather_object(gathered: list[Any], mine: object, group: object = None) -> None:
    gathered[:] = [mine] * len(gathered)


def _pre_forward(self: DistributedDataParallel, *inputs: Any, **named: Any) -> Any:
    with counters.answered(None):  # the arrangement of buckets is copied to the device, sent and read back
        return _rebuild_buckets(self, *inputs, **named)


_ALONE = {
    # Rank 0 would wait for others that never come.
    "torch.distributed.distributed_c10d._store_based_barrier": _nothing,
    "sts_core.distributed._meet": _nothing,
    # NCCL would compute sizes on the device, where nothing computes.
    "torch.distributed.all_gather_object": _gather_object,
    "torch.distributed.broadcast_object_list": _nothing,
}
