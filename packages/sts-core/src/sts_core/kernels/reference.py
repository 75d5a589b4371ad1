"""The update rule in plain PyTorch: the specification that the fast kernels are tested against."""

from collections.abc import Sequence
from functools import lru_cache, singledispatch

import torch
from torch import Tensor

from sts_core import masks
from sts_core.config import Granularity
from sts_core.kernels.interface import Pair, Rule, unit_name

_STEPS_AT_ONCE = 64


def lerp_(teacher: Tensor, student: Tensor, momentum: float) -> None:
    """θᵀ ← m·θᵀ + (1 − m)·θˢ in the teacher's precision; at m = 0 a copy, which NaN and infinities survive."""
    if momentum == 0.0:
        teacher.copy_(student)
    else:
        teacher.lerp_(student.to(teacher.dtype), 1.0 - momentum)


class ReferenceKernel:
    """Every update rule in plain PyTorch operations, on any device and for any strides."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self.pairs = list(pairs)

    def supports(self, rule: Rule) -> bool:
        return True

    @torch.no_grad()
    def update(self, rules: Sequence[Rule], skip: Tensor | None = None) -> None:
        if skip is not None and bool(skip):  # on a GPU the host waits here; the kernel of Triton needs no host
            return
        for index, rule in enumerate(rules):
            update_teacher(rule, [(pair.name, pair.student, pair.teachers[index]) for pair in self.pairs])


@singledispatch
def update_teacher(rule: Rule, tensors: list[tuple[str, Tensor, Tensor]]) -> None:
    """Move a teacher by its rule, given as (name, student's tensor, teacher's tensor).

        @update_teacher.register
        def _(rule: MyRule, tensors: list[tuple[str, Tensor, Tensor]]) -> None: ...

    is all that a subclass of Rule needs; until faster kernels support it, it is applied here.
    """
    if rule.preserve_probability == 1.0:
        return
    if rule.preserve_probability == 0.0 or rule.granularity in ("layer", "module"):
        _update_selected(_selected(tensors, rule), rule.momentum)
    elif rule.granularity == "channel":
        _update_channels(tensors, rule)
    else:
        _update_neurons(tensors, rule)


def _selected(tensors: list[tuple[str, Tensor, Tensor]], rule: Rule) -> list[tuple[str, Tensor, Tensor]]:
    """The tensors whose unit is drawn for an update."""
    if rule.preserve_probability == 0.0:
        return tensors
    updated = drawn_units([name for name, _, _ in tensors], rule)
    return [tensor for tensor, take in zip(tensors, updated, strict=True) if take]


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
    block, turn = divmod(rule.step, _STEPS_AT_ONCE)
    words = _unit_words(tuple(names), rule.granularity, block, rule.seed)[turn]
    updated: list[bool] = (words >= masks.threshold(rule.preserve_probability, 32)).tolist()
    return updated


@lru_cache(maxsize=16)
def _unit_words(names: tuple[str, ...], granularity: Granularity, block: int, seed: int) -> Tensor:
    """[steps, tensors]: the words of a block of steps, since drawing for many costs hardly more than for one."""
    tags = [masks.signed(masks.stream_tag(granularity, unit_name(granularity, name))) for name in names]
    steps = torch.arange(block * _STEPS_AT_ONCE, (block + 1) * _STEPS_AT_ONCE)
    return masks.unit_words(torch.tensor(tags, dtype=torch.int64), steps, seed)


def _update_channels(tensors: list[tuple[str, Tensor, Tensor]], rule: Rule) -> None:
    sizes = tuple((name, len(teacher) if teacher.dim() else 1) for name, _, teacher in tensors)
    weights = _channel_draws(sizes, rule).float().mul_(1.0 - rule.momentum)
    for (_, student, teacher), weight in zip(tensors, _per_tensor(weights, sizes), strict=True):
        if teacher.dim() != 1:
            weight = weight.view((-1,) + (1,) * (teacher.dim() - 1) if teacher.dim() else ())
        teacher.lerp_(student.to(teacher), weight.to(teacher))


def _lerp_where_(teacher: Tensor, student: Tensor, updated: Tensor, momentum: float) -> None:
    """The update of the units that a mask marks, by a weight that is 0 elsewhere.

    torch.where would take ten times as long on a CPU. The price: where the student is not finite, units that should
    stay are lost too.
    """
    weight = updated.to(teacher.dtype).mul_(1.0 - momentum)
    teacher.lerp_(student.to(teacher), weight)


def drawn_channels(sizes: Sequence[tuple[str, int]], rule: Rule) -> list[Tensor]:
    """For each (tensor, size of dim 0): a bool tensor, which of its channels are updated at this step."""
    return _per_tensor(_channel_draws(tuple(sizes), rule), sizes)


def _per_tensor(draws: Tensor, sizes: Sequence[tuple[str, int]]) -> list[Tensor]:
    """Each tensor's part of all draws, without the padding."""
    parts = torch.split_with_sizes(draws, [-(-rows // 4) * 4 for _, rows in sizes])
    return [part if len(part) == rows else part[:rows] for part, (_, rows) in zip(parts, sizes, strict=True)]


def _channel_draws(sizes: tuple[tuple[str, int], ...], rule: Rule) -> Tensor:
    """All tensors' channels in one bool tensor, each tensor's padded to a multiple of four."""
    words = masks.philox(*_channel_streams(sizes), rule.step, rule.seed)
    return torch.stack(words, dim=1).view(-1) >= masks.threshold(rule.preserve_probability, 32)


@lru_cache(maxsize=16)
def _channel_streams(sizes: tuple[tuple[str, int], ...]) -> tuple[Tensor, Tensor]:
    """Positions and tags of all draws: row r of a tensor takes word r % 4 of its position r // 4."""
    calls = [(rows + 3) // 4 for _, rows in sizes]
    streams = [masks.signed(masks.stream_tag("channel", name)) for name, _ in sizes]
    tags = [torch.full((n,), stream) for n, stream in zip(calls, streams, strict=True)]
    empty = torch.zeros(0, dtype=torch.int64)
    return torch.cat([empty, *map(torch.arange, calls)]), torch.cat([empty, *tags])


def _update_neurons(tensors: list[tuple[str, Tensor, Tensor]], rule: Rule) -> None:
    for device in {teacher.device for _, _, teacher in tensors}:
        here = [tensor for tensor in tensors if tensor[2].device == device]
        pieces = masks.neuron_masks(
            [(name, teacher.numel()) for name, _, teacher in here],
            probability=rule.preserve_probability,
            step=rule.step,
            seed=rule.seed,
            device=device,
        )
        for segment, updated in pieces:
            _, student, teacher = here[segment.tensor]
            if teacher.is_contiguous():
                old, new = (x.reshape(-1)[segment.begin : segment.end] for x in (teacher, student))
                _lerp_where_(old, new, updated, rule.momentum)
            else:
                _update_scattered(teacher, student, segment, updated, rule.momentum)


def _update_scattered(
    teacher: Tensor, student: Tensor, segment: masks.Segment, updated: Tensor, momentum: float
) -> None:
    """Any strides: the segment's weights are taken out in row-major order, updated and put back."""
    index = torch.arange(segment.begin, segment.end, device=teacher.device)
    where = torch.unravel_index(index, teacher.shape)
    old = teacher[where]
    _lerp_where_(old, student[where].to(teacher.device), updated, momentum)
    teacher[where] = old
