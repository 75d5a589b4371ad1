"""Teachers in bfloat16 that move all the same: an update is rounded up or down by chance, so that the mean is exact."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sts_core import masks
from sts_core.kernels.interface import Pair, Rule
from sts_core.kernels.reference import ReferenceKernel
from sts_core.sharded.blocks import Shard


class RoundingKernel(ReferenceKernel):
    """Updates in float32, one tensor after the other, then rounds to bfloat16 stochastically.

    A weight between two neighbours a < x < b of bfloat16 becomes b with probability (x − a) / (b − a) and a otherwise:
    nothing is lost on average. Weight i of the whole tensor takes the lower (i even) or upper 16 bits of word
    i % 8 // 2 of position i // 8 in the stream "rounding", so that ranks and resumed runs agree.
    """

    @torch.no_grad()
    def update(self, rules: Sequence[Rule], skip: Tensor | None = None) -> None:
        for pair in self.pairs:
            wide = tuple(teacher.float() for teacher in pair.teachers)
            ReferenceKernel([pair._replace(teachers=wide)]).update(rules, skip)
            for teacher, value, rule in zip(pair.teachers, wide, rules, strict=True):
                _round_into_(teacher, value, pair, rule)


def _round_into_(teacher: Tensor, value: Tensor, pair: Pair, rule: Rule) -> None:
    """bfloat16 is the upper half of float32: what 16 random bits, added to the lower half, carry into it rounds up."""
    shard = pair.shard or Shard(tuple(teacher.shape), (0,) * teacher.dim())
    if not teacher.dim():
        teacher, value, shard = teacher.view(1), value.view(1), Shard((1,), (0,))
    for rows, begin, end in shard.slabs(teacher.shape, masks.WEIGHTS_AT_ONCE):
        bits = shard.cut(_bits(pair.name, begin, end, rule, teacher.device), teacher.shape)
        part = value[rows].contiguous()
        up_or_down = part.view(torch.int32).add(bits).bitwise_and_(-1 << 16).view(torch.float32)
        teacher[rows] = torch.where(part.isfinite(), up_or_down, part).to(torch.bfloat16)


def _bits(name: str, begin: int, end: int, rule: Rule, device: torch.device) -> Tensor:
    """16 random bits for each of these weights of the whole tensor."""
    positions = torch.arange(begin // 8, -(-end // 8), device=device)
    words = torch.stack(masks.philox(positions, masks.stream_tag("rounding", name), rule.step, rule.seed), dim=1)
    halves = torch.stack([words & 0xFFFF, words >> 16], dim=2).view(-1)
    return halves[begin % 8 :][: end - begin].to(torch.int32)
