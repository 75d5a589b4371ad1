"""The update rule in plain PyTorch: the specification that the fast kernels are tested against."""

from collections.abc import Sequence
from functools import lru_cache, singledispatch

import torch
from torch import Tensor

from sts_core import masks
from sts_core.config import Granularity
from sts_core.kernels.interface import Pair, Rule, Target, unit_name
from sts_core.sharded.blocks import Shard

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
            update_teacher(rule, [Target(p.name, p.student, p.teachers[index], p.shard) for p in self.pairs])


@singledispatch
def update_teacher(rule: Rule, tensors: list[Target]) -> None:
    """Move a teacher by its rule.

        @update_teacher.register
        def _(rule: MyRule, tensors: list[Target]) -> None: ...

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


def _selected(tensors: list[Target], rule: Rule) -> list[Target]:
    """The tensors whose unit is drawn for an update."""
    if rule.preserve_probability == 0.0:
        return tensors
    updated = drawn_units([tensor.name for tensor in tensors], rule)
    return [tensor for tensor, take in zip(tensors, updated, strict=True) if take]


def _update_selected(tensors: list[Target], momentum: float) -> None:
    """Multi-tensor forms where dtypes and devices allow them, one tensor after the other elsewhere."""
    alike = [t for t in tensors if t.student.dtype == t.teacher.dtype and t.student.device == t.teacher.device]
    if alike:
        students, teachers = [t.student for t in alike], [t.teacher for t in alike]
        if momentum == 0.0:
            torch._foreach_copy_(teachers, students)
        else:
            torch._foreach_lerp_(teachers, students, 1.0 - momentum)
    for _, student, teacher, _ in tensors:
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


def _update_channels(tensors: list[Target], rule: Rule) -> None:
    rows = tuple((t.name, *_rows(t.teacher, t.shard)) for t in tensors)
    weights = _channel_draws(rows, rule).float().mul_(1.0 - rule.momentum)
    for (_, student, teacher, _), weight in zip(tensors, _per_tensor(weights, rows), strict=True):
        if teacher.dim() != 1:
            weight = weight.view((-1,) + (1,) * (teacher.dim() - 1) if teacher.dim() else ())
        teacher.lerp_(student.to(teacher), weight.to(teacher))


def _rows(tensor: Tensor, shard: Shard | None) -> tuple[int, int]:
    """First and last index of dim 0, in the whole tensor."""
    first = shard.offset[0] if shard and shard.offset else 0
    return first, first + (len(tensor) if tensor.dim() else 1)


def _lerp_where_(teacher: Tensor, student: Tensor, updated: Tensor, momentum: float) -> None:
    """The update of the units that a mask marks, by a weight that is 0 elsewhere.

    torch.where would take ten times as long on a CPU. The price: where the student is not finite, units that should
    stay are lost too.
    """
    weight = updated.to(teacher.dtype).mul_(1.0 - momentum)
    teacher.lerp_(student.to(teacher), weight)


def drawn_channels(sizes: Sequence[tuple[str, int]], rule: Rule) -> list[Tensor]:
    """For each (tensor, size of dim 0): a bool tensor, which of its channels are updated at this step."""
    rows = tuple((name, 0, size) for name, size in sizes)
    return _per_tensor(_channel_draws(rows, rule), rows)


def _calls(first: int, last: int) -> tuple[int, int]:
    """Positions that hold the draws of these rows: row r of a tensor takes word r % 4 of its position r // 4."""
    return first // 4, -(-last // 4)


def _per_tensor(draws: Tensor, rows: Sequence[tuple[str, int, int]]) -> list[Tensor]:
    """Each tensor's part of all draws, without the rows before and after that share its positions."""
    calls = [_calls(first, last) for _, first, last in rows]
    parts = torch.split_with_sizes(draws, [4 * (end - begin) for begin, end in calls])
    return [part[first % 4 :][: last - first] for part, (_, first, last) in zip(parts, rows, strict=True)]


def _channel_draws(rows: tuple[tuple[str, int, int], ...], rule: Rule) -> Tensor:
    """The channels of all positions that the tensors' rows take, in one bool tensor."""
    words = masks.philox(*_channel_streams(rows), rule.step, rule.seed)
    return torch.stack(words, dim=1).view(-1) >= masks.threshold(rule.preserve_probability, 32)


@lru_cache(maxsize=16)
def _channel_streams(rows: tuple[tuple[str, int, int], ...]) -> tuple[Tensor, Tensor]:
    """Positions and tags of all draws."""
    positions = [torch.arange(*_calls(first, last)) for _, first, last in rows]
    streams = [masks.signed(masks.stream_tag("channel", name)) for name, _, _ in rows]
    tags = [torch.full((len(p),), stream) for p, stream in zip(positions, streams, strict=True)]
    empty = torch.zeros(0, dtype=torch.int64)
    return torch.cat([empty, *positions]), torch.cat([empty, *tags])


def _update_neurons(tensors: list[Target], rule: Rule) -> None:
    for target in tensors:
        if target.shard is not None:
            _update_block(target, target.shard, rule)
    for device in {target.teacher.device for target in tensors}:
        here = [target for target in tensors if target.teacher.device == device and target.shard is None]
        pieces = masks.neuron_masks(
            [(name, teacher.numel()) for name, _, teacher, _ in here],
            probability=rule.preserve_probability,
            step=rule.step,
            seed=rule.seed,
            device=device,
        )
        for segment, updated in pieces:
            _, student, teacher, _ = here[segment.tensor]
            if teacher.is_contiguous():
                old, new = (x.reshape(-1)[segment.begin : segment.end] for x in (teacher, student))
                _lerp_where_(old, new, updated, rule.momentum)
            else:
                _update_scattered(teacher, student, segment, updated, rule.momentum)


def _update_block(target: Target, shard: Shard, rule: Rule) -> None:
    """A block of a larger tensor: the masks of all of its rows are drawn, some rows at once, and the block cut out."""
    name, student, teacher, _ = target
    if not teacher.dim():
        student, teacher, shard = student.view(1), teacher.view(1), Shard((1,), (0,))
    for rows, begin, end in shard.slabs(teacher.shape, masks.WEIGHTS_AT_ONCE):
        drawn = masks.neuron_range(
            masks.Segment(0, begin, end),
            name,
            probability=rule.preserve_probability,
            step=rule.step,
            seed=rule.seed,
            device=teacher.device,
        )
        _lerp_where_(teacher[rows], student[rows], shard.cut(drawn, teacher.shape), rule.momentum)


def _update_scattered(
    teacher: Tensor, student: Tensor, segment: masks.Segment, updated: Tensor, momentum: float
) -> None:
    """Any strides: the segment's weights are taken out in row-major order, updated and put back."""
    index = torch.arange(segment.begin, segment.end, device=teacher.device)
    where = torch.unravel_index(index, teacher.shape)
    old = teacher[where]
    _lerp_where_(old, student[where].to(teacher.device), updated, momentum)
    teacher[where] = old
