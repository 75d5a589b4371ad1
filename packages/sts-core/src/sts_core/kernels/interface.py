"""What an update kernel is: the rules it applies, and the tensors it is bound to."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from torch import Tensor

from sts_core.config import Granularity

Backend = Literal["auto", "reference", "native", "triton"]


@dataclass(frozen=True)
class Rule:
    """One teacher's update: the numbers of the equation and the key of the draws.

    Another rule is a subclass, and starts as one function registered with `reference.update_teacher`.
    """

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
    """Updates a fixed list of pairs."""

    pairs: list[Pair]

    def supports(self, rule: Rule) -> bool:
        """Whether the kernel can apply the rule; the reference applies all."""

    def update(self, rules: Sequence[Rule]) -> None:
        """Move each teacher by its entry of `rules`, of which the kernel supports every one."""


def unit_name(granularity: Granularity, tensor: str) -> str:
    """The name that a layer's or a module's draw is keyed with."""
    return tensor.rpartition(".")[0] if granularity == "module" else tensor
