"""Collectives that methods and evaluation share, and the check that all ranks hold the same weights.

With one process, or no process group, each returns its argument. Whoever launches the processes (Ray Train, torchrun)
initialises `torch.distributed`; nothing here does.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from sts_core.errors import RankMismatchError
from sts_core.sharded.blocks import local, shard_of

__all__ = [
    "agree", "average_over_ranks_", "barrier", "broadcast_object", "checksum", "communication_device",
    "differentiable_sum", "exchange_rows", "gather_batch", "gather_lists", "gather_objects", "is_parallel", "on_device",
    "rank", "send_to_first", "sendable", "statistics_group", "sum_over_ranks", "sum_over_ranks_", "verify_ranks",
    "world_size",
]  # fmt: skip

T = TypeVar("T")

PATIENCE = timedelta(days=1)
"""How long ranks wait for one that scans a folder, takes its turn or copies, whatever the group's own time-out."""


def is_parallel() -> bool:
    """Whether more than one process takes part."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def rank() -> int:
    """This process's number among all, 0 when alone."""
    return dist.get_rank() if is_parallel() else 0


def world_size() -> int:
    """The number of processes that work together, 1 when alone."""
    return dist.get_world_size() if is_parallel() else 1


def statistics_group() -> Any:
    """A process group of all ranks for what a layer waits for, beside the one whose queue gradients fill."""
    return _second_group(dist.group.WORLD)


@lru_cache(maxsize=1)
def _second_group(first: Any) -> Any:
    """Made once for each default group, by all ranks at the same moment: that of their first exchange."""
    return dist.new_group()


def barrier() -> None:
    """Wait for all processes, however late one of them is."""
    if is_parallel():
        _meet()
        dist.barrier()


def _meet() -> None:
    """Wait at the store, which has no time-out of its own, until the last rank is there; then a collective may begin.

    That collective keeps the process that serves the store alive until all have read their answer.
    """
    store = dist.distributed_c10d._get_default_store()
    arrivals = store.add("sts-arrivals", 1)
    meeting = f"sts-meeting-{(arrivals - 1) // world_size()}"  # nobody comes to the next before this one is over
    if arrivals % world_size() == 0:
        store.set(meeting, "all are here")
    store.wait([meeting], PATIENCE)


def communication_device() -> torch.device:
    """Where tensors of the host must go to be sent: NCCL only knows GPUs."""
    return torch.device("cpu" if "cpu:" in str(dist.get_backend_config()) else "cuda")


def sendable(tensor: Tensor) -> Tensor:
    """The tensor, or its copy on a device whose tensors the process group takes."""
    takes = f"{tensor.device.type}:" in str(dist.get_backend_config())
    return (tensor if takes else tensor.to(communication_device())).contiguous()


@torch.no_grad()
def gather_batch(local: Tensor, shares: Sequence[int] | None = None) -> Tensor:
    """The ranks' tensors of equal shape [N, ...] one after the other, as [world size · N, ...] on every rank.

    With `shares`, the number of rows of each rank, their shapes differ in it.
    """
    if world_size() == 1:
        return local.detach()
    if shares is not None:
        most = max(shares)
        padded = torch.cat([local.detach(), local.new_zeros(most - len(local), *local.shape[1:])])
        parts = zip(gather_batch(padded).chunk(len(shares)), shares, strict=True)
        return torch.cat([part[:num] for part, num in parts])
    rows, nhwc = _rows(local.detach())
    source = sendable(rows)
    gathered = source.new_empty((world_size() * source.shape[0], *source.shape[1:]))
    dist.all_gather_into_tensor(gathered, source)
    gathered = gathered.to(local.device)
    return gathered.permute(0, 3, 1, 2) if nhwc else gathered


def _rows(local: Tensor) -> tuple[Tensor, bool]:
    """The dense row-major memory that collectives move: an NHWC tensor travels as one, and keeps its format so."""
    nhwc = local.dim() == 4 and not local.is_contiguous() and local.is_contiguous(memory_format=torch.channels_last)
    return (local.permute(0, 2, 3, 1) if nhwc else local.contiguous()), nhwc


@torch.no_grad()
def exchange_rows(local: Tensor, order: Tensor) -> Tensor:
    """This rank's part of the global batch in another order, which every rank knows: each row travels once.

    `order` holds positions in the global batch [world size · N], on the CPU; rank r gets those of its r-th part.
    """
    if world_size() == 1:
        return local.detach()[on_device(order, local.device)]
    source, nhwc = _rows(local.detach())
    owners, rows = order.view(world_size(), -1) // len(local), order.view(world_size(), -1) % len(local)
    outgoing = [rows[other][owners[other] == rank()] for other in range(world_size())]
    place = owners[rank()].argsort(stable=True).argsort()  # rows arrive owner by owner
    index = on_device(torch.cat([*outgoing, place]), local.device)
    sent = source.index_select(0, index[: len(local)])
    received = torch.empty_like(sent)
    arriving = owners[rank()].bincount(minlength=world_size()).tolist()
    dist.all_to_all_single(received, sent, arriving, [len(part) for part in outgoing])
    mine = received.index_select(0, index[len(local) :])
    return mine.permute(0, 3, 1, 2) if nhwc else mine


def on_device(values: Tensor, device: torch.device) -> Tensor:
    """A copy of the host's values for which nobody waits: to a GPU they travel from pinned memory."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)


def gather_objects(local: T) -> list[T]:
    """The ranks' small picklable objects, in the order of the ranks, on every rank, however late one of them is."""
    if world_size() == 1:
        return [local]
    _meet()
    gathered: list[Any] = [None] * world_size()
    dist.all_gather_object(gathered, local)
    return gathered


def gather_lists(mine: Sequence[T]) -> list[T]:
    """The items of all processes, rank after rank, on every rank."""
    return [item for part in gather_objects(list(mine)) for item in part]


def broadcast_object(value: T) -> T:
    """Rank 0's `value`, on every rank, however long rank 0 takes to find it."""
    if not is_parallel():
        return value
    _meet()
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


@torch.no_grad()
def sum_over_ranks(local: Tensor) -> Tensor:
    """Σ over ranks of small tensors, on every rank; gloo's all-reduce takes twice as long as its gather."""
    return gather_batch(local[None]).sum(dim=0)


def sum_over_ranks_(tensor: Tensor) -> Tensor:
    """Replace a tensor of any size, on any device, by its sum over all processes, and return it."""
    if is_parallel():
        sent = sendable(tensor)
        dist.all_reduce(sent)
        if sent is not tensor:
            tensor.copy_(sent)
    return tensor


def send_to_first(
    tensors: Mapping[str, Tensor] | None, owner: int, like: Mapping[str, Tensor]
) -> dict[str, Tensor] | None:
    """The named tensors of rank `owner`, on rank 0 (in the host's memory if they came from another); None elsewhere.

    Only the two ranks exchange anything. `like` has their names, shapes and types, on rank 0.
    """
    if rank() == owner != 0 and tensors is not None:
        for tensor in tensors.values():
            dist.send(sendable(tensor), dst=0)
    if rank() != 0:
        return None
    if owner == 0 and tensors is not None:
        return dict(tensors)
    return {name: _received(tensor, owner) for name, tensor in like.items()}


def _received(like: Tensor, source: int) -> Tensor:
    received = torch.empty_like(sendable(like), memory_format=torch.contiguous_format)
    dist.recv(received, src=source)
    return received.cpu()


@torch.no_grad()
def average_over_ranks_(tensors: Sequence[Tensor]) -> None:
    """Replace float tensors by their mean over ranks, all of them in one collective."""
    if world_size() == 1 or not tensors:
        return
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(flat)
    flat /= world_size()
    means = torch.split(flat, [tensor.numel() for tensor in tensors])
    torch._foreach_copy_(list(tensors), [mean.view_as(tensor) for tensor, mean in zip(tensors, means, strict=True)])


class _Sum(torch.autograd.Function):
    """y = Σ_r x_r on every rank; the loss is Σ_r L_r, so ∂L/∂x_r = Σ_r ∂L_r/∂y."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return sum_over_ranks_(tensor.clone())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return sum_over_ranks_(gradients[0].contiguous().clone())


def differentiable_sum(tensor: Tensor) -> Tensor:
    """The sum over all processes, with the gradient of a loss that is itself summed over processes."""
    if not is_parallel():
        return tensor
    total: Tensor = _Sum.apply(tensor)
    return total


def agree(flag: bool, device: torch.device) -> bool:
    """Whether `flag` is true on any rank: the same answer everywhere."""
    if world_size() == 1:
        return flag
    shared = torch.tensor(float(flag), device=device)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX)
    return bool(shared.item())


def checksum(tensor: Tensor) -> int:
    """CRC-32 of the tensor's bytes, in logical order."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return zlib.crc32(flat.view(torch.uint8).numpy().data) if flat.numel() else 0


def _place(name: str, tensor: Tensor) -> tuple[int, int]:
    """Which part of the whole tensor this rank holds: a number for its position, and its size."""
    shard = shard_of(name, tensor)
    return (0 if shard is None else zlib.crc32(repr(shard.offset).encode())), local(tensor).numel()


def verify_ranks(tensors: Iterable[tuple[str, Tensor]], *, device: torch.device) -> None:
    """Raise RankMismatchError, on every rank, with the first tensor that is not the same on all ranks that hold it.

    Of a sharded tensor those parts are compared that several ranks hold.
    """
    if world_size() == 1:
        return
    named = list(tensors)
    rows = [(*_place(name, tensor), checksum(local(tensor))) for name, tensor in named]
    mine = torch.tensor(rows, dtype=torch.int64, device=device).view(-1, 3)
    tables = gather_batch(mine[None]).cpu().transpose(0, 1).tolist()  # [tensors, ranks, 3]
    differing = [(name, *two) for (name, _), table in zip(named, tables, strict=True) if (two := _unequal(table))]
    if not differing:
        return
    name, one, other = differing[0]
    raise RankMismatchError(
        f"all ranks must hold the same weights, but {name!r} on rank {other} differs from rank {one}'s "
        f"({len(differing)} of {len(named)} tensors differ): resume from the last checkpoint, and look for draws or "
        f"statistics that depend on the rank"
    )


def _unequal(table: list[list[int]]) -> list[int]:
    """Two ranks that hold the same part of a tensor with other weights, given each rank's (place, size, checksum)."""
    holders: dict[tuple[int, int], int] = {}
    for other, (place, size, found) in enumerate(table):
        one = holders.setdefault((place, size), other)
        if table[one][2] != found:
            return [one, other]
    return []
