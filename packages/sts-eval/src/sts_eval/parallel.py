"""The few collectives that evaluation needs; with no process group each is the identity.

Whoever launches the processes (Ray Train, torchrun) initialises `torch.distributed`; nothing here does.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


def is_parallel() -> bool:
    """Whether more than one process takes part."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def rank() -> int:
    """The index of this process, 0 when alone."""
    return dist.get_rank() if is_parallel() else 0


def world_size() -> int:
    """The number of processes, 1 when alone."""
    return dist.get_world_size() if is_parallel() else 1


def barrier() -> None:
    """Wait for all processes."""
    if is_parallel():
        dist.barrier()


def communication_device() -> torch.device:
    """Where tensors must live to be sent: NCCL only knows GPUs."""
    return torch.device("cuda") if dist.get_backend() == "nccl" else torch.device("cpu")


def sum_across_ranks_(tensor: Tensor) -> Tensor:
    """Replace `tensor` by its sum over all processes, and return it."""
    if is_parallel():
        sent = tensor.to(communication_device())
        dist.all_reduce(sent)
        if sent is not tensor:
            tensor.copy_(sent)
    return tensor


def broadcast_object(value: Any) -> Any:
    """Rank 0's `value`, on every rank."""
    if not is_parallel():
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def gather(mine: Sequence[T]) -> list[T]:
    """The items of all processes, rank after rank, on every rank."""
    if not is_parallel():
        return list(mine)
    parts: list[Any] = [None] * world_size()
    dist.all_gather_object(parts, list(mine))
    return [item for part in parts for item in part]


class _Sum(torch.autograd.Function):
    """y = Σ_r x_r on every rank; the loss is Σ_r L_r, so ∂L/∂x_r = Σ_r ∂L_r/∂y."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return sum_across_ranks_(tensor.clone())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return sum_across_ranks_(gradients[0].contiguous().clone())


def differentiable_sum(tensor: Tensor) -> Tensor:
    """The sum over all processes, with the gradient of a loss that is itself summed over processes."""
    if not is_parallel():
        return tensor
    total: Tensor = _Sum.apply(tensor)
    return total
