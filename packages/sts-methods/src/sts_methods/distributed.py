"""The few collectives that the methods need; with one process, or none initialised, they return their argument.

They run in the default process group with any backend, gloo on CPUs included.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def _initialised() -> bool:
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    """This process's number among all, 0 outside a process group."""
    return dist.get_rank() if _initialised() else 0


def world_size() -> int:
    """The number of processes that train together, 1 outside a process group."""
    return dist.get_world_size() if _initialised() else 1


@torch.no_grad()
def gather_batch(local: Tensor) -> Tensor:
    """The ranks' tensors of equal shape [N, ...] one after the other, as [world size · N, ...] on every rank."""
    if world_size() == 1:
        return local.detach()
    local = local.detach()
    # Collectives move dense row-major memory: an NHWC tensor travels as one and keeps its format without a copy.
    nhwc = local.dim() == 4 and not local.is_contiguous() and local.is_contiguous(memory_format=torch.channels_last)
    source = local.permute(0, 2, 3, 1) if nhwc else local.contiguous()
    gathered = source.new_empty((world_size() * source.shape[0], *source.shape[1:]))
    dist.all_gather_into_tensor(gathered, source)
    return gathered.permute(0, 3, 1, 2) if nhwc else gathered


def gather_objects(local: Any) -> list[Any]:
    """The ranks' small picklable objects, in the order of the ranks, on every rank."""
    if world_size() == 1:
        return [local]
    gathered: list[Any] = [None] * world_size()
    dist.all_gather_object(gathered, local)
    return gathered


@torch.no_grad()
def sum_over_ranks(local: Tensor) -> Tensor:
    """Σ over ranks of small tensors, on every rank; gloo's all-reduce takes twice as long as its gather."""
    return gather_batch(local[None]).sum(dim=0)


@torch.no_grad()
def average_over_ranks_(tensors: Sequence[Tensor]) -> None:
    """Replace float tensors by their mean over ranks, all of them in one collective."""
    if world_size() == 1 or not tensors:
        return
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(flat)
    flat /= world_size()
    means = torch.split(flat, [tensor.numel() for tensor in tensors])
    for tensor, mean in zip(tensors, means, strict=True):
        tensor.copy_(mean.view_as(tensor))
