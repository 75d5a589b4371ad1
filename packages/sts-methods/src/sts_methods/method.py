"""What every student-teacher method is: a student, a teacher and a loss."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor, nn

from sts_core import Buffers, ConfigError

Network = Literal["teacher", "student"]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One rank's share of a (micro-)batch, on the device and normalised."""

    views: tuple[Tensor, ...]
    """Views of the unlabelled images: (one, two) for BYOL and MoCo, (weak, strong) for FixMatch,
    (student's, teacher's) for Mean Teacher, (global, global, local, ...) for DINO."""
    indices: Tensor
    """Index of each unlabelled image in its dataset."""
    step: int
    """The optimizer step this batch belongs to: the key of every draw a method makes."""
    labelled: Tensor | None = None
    """Weakly augmented labelled images (FixMatch, Mean Teacher)."""
    labels: Tensor | None = None
    """Their classes."""

    def labelled_part(self) -> tuple[Tensor, Tensor]:
        """The labelled images and their classes, for methods that cannot do without."""
        if self.labelled is None or self.labels is None:
            raise ConfigError(
                "this method learns from labels too, got a batch without: use a semi-supervised data recipe"
            )
        return self.labelled, self.labels


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

    def forward(self, batch: Batch) -> StepResult:
        raise NotImplementedError

    def adjust_gradients_(self, step: int) -> None:
        """Change the gradients of an optimizer step once they are complete; most methods take them as they are."""

    def backbone(self, network: Network) -> nn.Module:
        """The feature extractor of the teacher or the student, without the method's heads."""
        module: nn.Module = (self.teacher if network == "teacher" else self.student).get_submodule("backbone")
        return module
