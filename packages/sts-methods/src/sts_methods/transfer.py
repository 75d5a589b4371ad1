"""Small tensors on their way to a device: all that a batch needs travels in one pinned copy, for which nobody waits.

A copy from pageable memory would make the host wait until the device has done all that it was given so far.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

Plan = TypeVar("Plan")
_ALIGNMENT = 16  # bytes; any dtype may start there


@dataclass(frozen=True)
class _Place:
    """Where in a parcel a tensor lies."""

    start: int
    size: int
    dtype: torch.dtype
    shape: torch.Size

    def of(self, packed: Tensor) -> Tensor:
        return packed[self.start : self.start + self.size].view(self.dtype).view(self.shape)


@dataclass
class Parcel(Generic[Plan]):
    """A plan, which is tensors in dataclasses and tuples, with the bytes of all tensors in one."""

    packed: Tensor
    plan: Any
    """The plan with places for tensors."""

    def pin_memory(self) -> "Parcel[Plan]":
        """The parcel in memory from which a GPU can fetch it by itself."""
        return Parcel(self.packed.pin_memory(), self.plan)

    def opened(self, device: torch.device) -> Plan:
        """The plan with its tensors on `device`."""
        packed = self.packed.to(device, non_blocking=True)
        opened: Plan = _each(self.plan, _Place, lambda place: place.of(packed))
        return opened


def pack(plan: Plan) -> Parcel[Plan]:
    """The parcel of a plan whose tensors are the host's."""
    tensors: list[Tensor] = []
    places: list[_Place] = []

    def placed(tensor: Tensor) -> _Place:
        start = places[-1].start + places[-1].size if places else 0
        start = -(-start // _ALIGNMENT) * _ALIGNMENT
        tensors.append(tensor)
        places.append(_Place(start, tensor.numel() * tensor.element_size(), tensor.dtype, tensor.shape))
        return places[-1]

    skeleton = _each(plan, Tensor, placed)
    packed = torch.empty(places[-1].start + places[-1].size if places else 0, dtype=torch.uint8)
    for tensor, place in zip(tensors, places, strict=True):
        place.of(packed).copy_(tensor)
    return Parcel(packed, skeleton)


def sent(plan: Plan, device: torch.device) -> Plan:
    """`plan` with its tensors, which are the host's, on `device`."""
    if device.type == "cpu":
        return plan
    parcel = pack(plan)
    return (parcel.pin_memory() if device.type == "cuda" and torch.cuda.is_available() else parcel).opened(device)


def _each(plan: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """`plan` with everything of `kind` in it changed."""
    if isinstance(plan, kind):
        return change(plan)
    if isinstance(plan, tuple):
        return tuple(_each(part, kind, change) for part in plan)
    if is_dataclass(plan) and not isinstance(plan, (type, _Place)):
        return replace(plan, **{f.name: _each(getattr(plan, f.name), kind, change) for f in fields(plan)})
    return plan
