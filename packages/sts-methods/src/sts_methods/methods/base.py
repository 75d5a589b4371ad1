"""What every student-teacher method is: a student, a teacher and a loss."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

from sts_core import Buffers
from sts_methods.batch import Batch, Network


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
