"""The interface of an update kernel, the choice of one for each tensor, and the reference kernel in plain PyTorch."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, get_args

import torch
from torch import Tensor

from sts_core import masks
from sts_core.config import Granularity
from sts_core.errors import ConfigError

Backend = Literal["auto", "reference", "native", "triton"]
_WEIGHTS_AT_ONCE = 1 << 17  # the reference kernel works on pieces that stay in the cache: temporaries of a few MB


@dataclass(frozen=True)
class Rule:
    """One teacher's update: the numbers of the equation and the key of the draws."""

    momentum: float
    preserve_probability: float
    granularity: Granularity
    step: int
    seed: int


class Pair(NamedTuple):
    """A student tensor and, for each teacher that follows it, the teacher's tensor of the same name."""

    name: str
    student: Tensor
    teachers: tuple[Tensor, ...]


class Kernel(Protocol):
    """Updates a fixed list of pairs; `rules` has one entry per teacher."""

    def update(self, rules: Sequence[Rule]) -> None: ...


def bind(pairs: Sequence[Pair], backend: Backend = "auto") -> list[Kernel]:
    """The kernels that together update all pairs: the fastest that can take each tensor, the reference for the rest."""
    backend = _chosen(backend)
    kernels: list[Kernel] = []
    rest = list(pairs)
    if backend in ("auto", "native"):
        from sts_core import native

        rest = native.claim(rest, kernels, required=backend == "native")
    if backend in ("auto", "triton"):
        from sts_core import gpu

        rest = gpu.claim(rest, kernels, required=backend == "triton")
    if rest:
        kernels.append(ReferenceKernel(rest))
    return kernels


def _chosen(backend: Backend) -> Backend:
    """The argument, or what STS_CORE_BACKEND asks for."""
    name = os.environ.get("STS_CORE_BACKEND", "auto") if backend == "auto" else backend
    for known in get_args(Backend):
        if name == known:
            return known  # type: ignore[no-any-return]
    raise ConfigError(
        f"backend must be one of {', '.join(get_args(Backend))}, got {name!r}: leave it out for the fastest"
    )


def unit_name(granularity: Granularity, tensor: str) -> str:
    """The name that a layer's or a module's draw is keyed with."""
    return tensor.rpartition(".")[0] if granularity == "module" else tensor


def lerp_(teacher: Tensor, student: Tensor, momentum: float) -> None:
    """θᵀ ← m·θᵀ + (1 − m)·θˢ in the teacher's precision; at m = 0 a copy, which NaN and infinities survive."""
    if momentum == 0.0:
        teacher.copy_(student)
    else:
        teacher.lerp_(student.to(teacher.dtype), 1.0 - momentum)


class ReferenceKernel:
    """The update rule in plain PyTorch operations, on any device and for any strides."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self.pairs = list(pairs)

    @torch.no_grad()
    def update(self, rules: Sequence[Rule]) -> None:
        for index, rule in enumerate(rules):
            self._update_teacher([(pair.name, pair.student, pair.teachers[index]) for pair in self.pairs], rule)

    def _update_teacher(self, tensors: list[tuple[str, Tensor, Tensor]], rule: Rule) -> None:
        if rule.preserve_probability == 1.0:
            return
        if rule.preserve_probability == 0.0 or rule.granularity in ("layer", "module"):
            self._update_selected(self._selected(tensors, rule), rule.momentum)
        elif rule.granularity == "channel":
            for name, student, teacher in tensors:
                _update_channels(name, student, teacher, rule)
        else:
            for name, student, teacher in tensors:
                _update_neurons(name, student, teacher, rule)

    @staticmethod
    def _selected(tensors: list[tuple[str, Tensor, Tensor]], rule: Rule) -> list[tuple[str, Tensor, Tensor]]:
        """The tensors whose unit is drawn for an update."""
        if rule.preserve_probability == 0.0:
            return tensors
        updated = drawn_units([name for name, _, _ in tensors], rule)
        return [tensor for tensor, take in zip(tensors, updated, strict=True) if take]

    @staticmethod
    def _update_selected(tensors: list[tuple[str, Tensor, Tensor]], momentum: float) -> None:
        """Multi-tensor forms where dtypes and devices allow them, one tensor after the other elsewhere."""
        alike = [t for t in tensors if t[1].dtype == t[2].dtype and t[1].device == t[2].device]
        if alike:
            students, teachers = [s for _, s, _ in alike], [t for _, _, t in alike]
            if momentum == 0.0:
                torch._foreach_copy_(teachers, students)
            else:
                torch._foreach_lerp_(teachers, students, 1.0 - momentum)
        for _, student, teacher in tensors:
            if student.dtype != teacher.dtype or student.device != teacher.device:
                lerp_(teacher, student.to(teacher.device), momentum)


def drawn_units(names: Sequence[str], rule: Rule) -> list[bool]:
    """For each tensor: whether its layer (or module) is updated at this step."""
    if not names:
        return []
    tags = [masks.stream_tag(rule.granularity, unit_name(rule.granularity, name)) for name in names]
    words = masks.unit_words(torch.tensor([masks.signed(tag) for tag in tags]), rule.step, rule.seed)
    updated: list[bool] = (words >= masks.threshold(rule.preserve_probability, 32)).tolist()
    return updated


def _update_channels(name: str, student: Tensor, teacher: Tensor, rule: Rule) -> None:
    if teacher.numel() == 0:
        return
    rows = teacher.shape[0] if teacher.dim() else 1
    tag = masks.stream_tag("channel", name)
    words = masks.channel_words(rows, tag, rule.step, rule.seed, torch.device("cpu"))
    chosen = (words >= masks.threshold(rule.preserve_probability, 32)).nonzero()[:, 0].to(teacher.device)
    flat_teacher, flat_student = teacher.view(1) if not teacher.dim() else teacher, student.reshape(teacher.shape)
    for piece in torch.split(chosen, max(1, _WEIGHTS_AT_ONCE * rows // teacher.numel())):
        old = flat_teacher[piece]
        lerp_(old, (flat_student if teacher.dim() else student.view(1))[piece].to(teacher.device), rule.momentum)
        flat_teacher[piece] = old


def _update_neurons(name: str, student: Tensor, teacher: Tensor, rule: Rule) -> None:
    for begin, end, old, new in _pieces(student, teacher):
        updated = masks.neuron_mask(
            begin,
            end,
            probability=rule.preserve_probability,
            name=name,
            step=rule.step,
            seed=rule.seed,
            device=teacher.device,
        ).view(old.shape)
        value = old.clone()
        lerp_(value, new.to(teacher.device), rule.momentum)
        old.copy_(torch.where(updated, value, old))


def _pieces(student: Tensor, teacher: Tensor) -> Iterator[tuple[int, int, Tensor, Tensor]]:
    """(begin, end, teacher view, student view) of row-major ranges, small enough for bounded temporaries."""
    if teacher.is_contiguous():
        flat_teacher, flat_student = teacher.view(-1), student.reshape(-1)
        for begin in range(0, teacher.numel(), _WEIGHTS_AT_ONCE):
            end = min(begin + _WEIGHTS_AT_ONCE, teacher.numel())
            yield begin, end, flat_teacher[begin:end], flat_student[begin:end]
    elif teacher.numel():
        row = teacher.numel() // teacher.shape[0]
        rows = max(1, _WEIGHTS_AT_ONCE // row)
        for first in range(0, teacher.shape[0], rows):
            last = min(first + rows, teacher.shape[0])
            yield first * row, last * row, teacher[first:last], student[first:last]
