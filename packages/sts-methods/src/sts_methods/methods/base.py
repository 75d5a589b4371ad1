"""What every student-teacher method is: a student, a teacher and a loss, and the record that makes it known."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn

from sts_core import Buffers, Network
from sts_methods.batch import Batch
from sts_methods.networks.backbones import Stem


@dataclass(frozen=True)
class StepResult:
    """The loss to differentiate and detached 0-d tensors to log."""

    loss: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)


class StudentTeacherMethod(nn.Module):
    """Base of all methods. `forward` is called once per (micro-)batch, so one DDP wrap around the method suffices.

    The teacher never requires gradients. Whoever trains binds a `sts_core.Smoother` to `student` and `teacher` and
    calls its `update()` once per optimizer step, and `adjust_gradients_` before that step.
    """

    student: nn.Module
    teacher: nn.Module
    teacher_buffers: Buffers = "keep"
    """The smoother's `buffers`: a teacher in train mode keeps its own, one in eval mode needs copies."""

    statistics_are_shared = True
    """Whether buffers are the same on all ranks; where they are not, `share_statistics_` makes them so."""

    def forward(self, batch: Batch) -> StepResult:
        raise NotImplementedError

    def adjust_gradients_(self, step: int) -> None:
        """Change the gradients of an optimizer step once they are complete; most methods take them as they are."""

    def share_statistics_(self) -> None:
        """Make buffers the same on all ranks, which all call this before one is read; most methods' always are."""

    def backbone(self, network: Network) -> nn.Module:
        """The feature extractor of the teacher or the student, without the method's heads."""
        module: nn.Module = (self.teacher if network == "teacher" else self.student).get_submodule("backbone")
        return module


class MethodConfig(Protocol):
    """What the config of every method says; it is a frozen dataclass with further fields of its own."""

    @property
    def backbone(self) -> str:
        """Name for `build_backbone`."""

    @property
    def stem(self) -> Stem:
        """First layers of the backbone."""


def _two_images(config: Any) -> int:
    return 2


@dataclass(frozen=True, kw_only=True)
class MethodRecord:
    """All that the rest of the project knows of a method."""

    name: str
    """What users call it."""
    config: type[Any]
    """Its config, a dataclass with at least the fields of `MethodConfig`."""
    build: Callable[..., StudentTeacherMethod]
    """Makes the method of (config, seed=)."""
    views: str
    """The views (`data.views`) that it trains on."""
    also_takes: tuple[str, ...] = ()
    """Views of other methods that serve it too."""
    trains_classifier: bool = False
    """Whether its networks are classifiers, of as many classes as its config's `num_classes` says."""
    takes_uneven_shares: bool = False
    """Whether ranks may have unequal parts of a batch: its loss is a mean over images, of which it gathers none."""
    smallest_batch: Callable[[Any], int] = _two_images
    """From its config to the least images that it can take a step on; batch norm needs two."""

    def num_classes(self, config: Any) -> int | None:
        """The classes that its networks tell apart; None if they are no classifiers."""
        return int(config.num_classes) if self.trains_classifier else None
