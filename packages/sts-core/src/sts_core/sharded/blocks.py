"""Tensors that are cut over ranks (FSDP2, tensor parallel, any DTensor): a rank's own part, and where it lies."""

import sys
from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sts_core.errors import PairingError


class Shard(NamedTuple):
    """The block of a tensor that a rank holds."""

    shape: tuple[int, ...]
    """Of the whole tensor."""
    offset: tuple[int, ...]
    """Of the block's first weight, in each dimension."""

    def runs(self, local: torch.Size) -> tuple[int, int, int] | None:
        """(length, distance, first): the block's weights as runs that are contiguous in the whole tensor as well.

        Run k begins at the whole tensor's weight first + k·distance. None where runs do not lie equally far apart.
        """
        cut = [dim for dim, size in enumerate(local) if size != self.shape[dim]]
        if not cut:
            return prod(local), prod(local), 0
        inner = prod(self.shape[cut[-1] + 1 :])
        length, distance = local[cut[-1]] * inner, self.shape[cut[-1]] * inner
        if any(dim not in (0, cut[-1]) for dim in cut):
            return None
        first = sum(start * prod(self.shape[dim + 1 :]) for dim, start in enumerate(self.offset))
        return length, distance, first

    def slabs(self, local: torch.Size, weights: int) -> Iterator[tuple[slice, int, int]]:
        """Some of the block's rows at once, with the stretch of the whole tensor's weights in which they lie."""
        row = prod(self.shape[1:])
        at_once = max(1, weights // max(1, row))
        for begin in range(0, local[0] if prod(local) else 0, at_once):
            end = min(local[0], begin + at_once)
            yield slice(begin, end), (self.offset[0] + begin) * row, (self.offset[0] + end) * row

    def cut(self, values: Tensor, local: torch.Size) -> Tensor:
        """The block's part of what was made for all weights of a slab."""
        inside = [slice(at, at + size) for at, size in zip(self.offset[1:], local[1:], strict=True)]
        return values.view(-1, *self.shape[1:])[(slice(None), *inside)]


def is_sharded(tensor: Tensor) -> bool:
    """Whether the tensor is a DTensor; where nobody has imported them there are none."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor, in its own memory; any other tensor itself."""
    return tensor._local_tensor if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def whole(tensor: Tensor) -> Tensor:
    """A DTensor gathered from all ranks; any other tensor itself."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def shard_of(name: str, tensor: Tensor) -> Shard | None:
    """Where this rank's part lies, None for a tensor that is not cut."""
    if not is_sharded(tensor):
        return None
    sharded: Any = tensor
    offset = []
    for dim, size in enumerate(sharded.shape):
        index = torch.arange(size)
        for mesh_dim, placement in enumerate(sharded.placements):
            if getattr(placement, "dim", None) == dim:
                # The index is a column, so that a placement finds its own dimension.
                column = index.view((1,) * dim + (-1,))
                pieces, _ = placement._split_tensor(column, sharded.device_mesh.size(mesh_dim), with_padding=False)
                index = pieces[sharded.device_mesh.get_local_rank(mesh_dim)].reshape(-1)
        offset.append(_first_of_block(name, index))
    return Shard(tuple(sharded.shape), tuple(offset))


def _first_of_block(name: str, index: Tensor) -> int:
    if not len(index):
        return 0
    first, last = int(index[0]), int(index[-1])
    if last - first + 1 != len(index):
        raise PairingError(f"a rank must hold one block of each tensor, but its rows of {name!r} are apart")
    return first


def check_alike(name: str, student: Tensor, teacher: Tensor) -> None:
    """Raise where a student's tensor and its teacher's are not cut in the same way, or not cut but to be summed."""
    cuts = [_cut(tensor) for tensor in (student, teacher)]
    if cuts[0] != cuts[1]:
        raise PairingError(
            f"student and teacher must be sharded alike, but {name!r} is {cuts[0]} in the student and {cuts[1]} in the "
            f"teacher: make the teacher by make_teacher(student) after the student was sharded"
        )
    if is_sharded(student) and any(placement.is_partial() for placement in student.placements):  # type: ignore[attr-defined]
        raise PairingError(f"a parameter must not be a sum that is still due, but {name!r} is {cuts[0]}")


def _cut(tensor: Tensor) -> str:
    if not is_sharded(tensor):
        return "whole"
    sharded: Any = tensor
    return f"{tuple(sharded.placements)} of {sharded.device_mesh}"


def fsdp_modules(module: nn.Module) -> list[Any]:
    """The parts of a network to which FSDP2's `fully_shard` was applied, outer ones first."""
    kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    return [] if kind is None else [part for part in module.modules() if isinstance(part, kind)]


def reshard(module: nn.Module) -> None:
    """Make FSDP modules hold their shards: after an evaluation they may still hold the gathered, older weights."""
    for part in fsdp_modules(module):
        part.reshard()
