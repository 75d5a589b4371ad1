"""What this process is among the workers, read from torch.distributed; without it, the only one."""

from typing import Any

import torch
import torch.distributed as dist


def is_distributed() -> bool:
    """Whether a process group with more than one worker exists."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def rank() -> int:
    """This worker's number."""
    return dist.get_rank() if is_distributed() else 0


def world_size() -> int:
    """The number of workers."""
    return dist.get_world_size() if is_distributed() else 1


class _SumOverRanks(torch.autograd.Function):
    """y = Σ_r x_r. Each rank's loss depends on every x_r through y, so the gradients are summed as well."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        total = value.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        total = gradients[0].clone()
        dist.all_reduce(total)
        return total


def sum_over_ranks(value: torch.Tensor) -> torch.Tensor:
    """The sum of `value` over all workers, differentiable; every worker must call it."""
    if not is_distributed():
        return value
    result: torch.Tensor = _SumOverRanks.apply(value)
    return result


def gather_objects(value: Any) -> list[Any]:
    """Every worker's picklable `value`, in the order of ranks, on every worker."""
    if not is_distributed():
        return [value]
    gathered: list[Any] = [None] * world_size()
    dist.all_gather_object(gathered, value)
    return gathered


def wait_for_all() -> None:
    """Return when every worker has come here."""
    if is_distributed():
        dist.barrier()
