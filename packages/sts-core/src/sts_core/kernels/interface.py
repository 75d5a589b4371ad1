"""What an update kernel is: the rules it applies, and the tensors it is bound to."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Protocol

from torch import Tensor

from sts_core.config import Granularity, SmoothingConfig
from sts_core.sharded.blocks import Shard

Backend = Literal["auto", "reference", "native", "triton"]


@dataclass(frozen=True)
class Rule:
    """One teacher's update: the numbers of the equation and the key of the draws.

    Another rule is a subclass, `class MyRule(Rule, config=MyConfig)`, for teachers whose config, a subclass of
    SmoothingConfig, is a MyConfig; it starts as one function registered with `reference.update_teacher`.
    """

    by_config: ClassVar[dict[type[SmoothingConfig], type["Rule"]]] = {}

    momentum: float
    preserve_probability: float
    granularity: Granularity
    step: int
    seed: int

    def __init_subclass__(cls, *, config: type[SmoothingConfig]) -> None:
        Rule.by_config[config] = cls


class Pair(NamedTuple):
    """A student tensor and, for each teacher that follows it, the teacher's tensor of the same name."""

    name: str
    student: Tensor
    teachers: tuple[Tensor, ...]
    shard: Shard | None = None
    """Which block of the whole tensor these are; draws are keyed by where a unit lies in the whole."""

    def runs(self) -> tuple[int, int, int]:
        """`Shard.runs`: a whole tensor is one; a run of no weights means that there is no such order."""
        size = self.student.numel()
        return (size, size, 0) if self.shard is None else self.shard.runs(self.student.shape) or (0, 0, 0)

    def first_row(self) -> int:
        """The first index of dim 0, in the whole tensor."""
        return self.shard.offset[0] if self.shard and self.shard.offset else 0


class Target(NamedTuple):
    """One teacher's tensor and the student's that it follows."""

    name: str
    student: Tensor
    teacher: Tensor
    shard: Shard | None


class Kernel(Protocol):
    """Updates a fixed list of pairs."""

    pairs: list[Pair]

    def supports(self, rule: Rule) -> bool:
        """Whether the kernel can apply the rule; the reference applies all."""

    def update(self, rules: Sequence[Rule], skip: Tensor | None = None) -> None:
        """Move each teacher by its entry of `rules`, of which the kernel supports every one; none if `skip` is 1."""


def unit_name(granularity: Granularity, tensor: str) -> str:
    """The name that a layer's or a module's draw is keyed with."""
    return tensor.rpartition(".")[0] if granularity == "module" else tensor
