"""What the small trainings with all hosts have in common, and the teacher that a plain loop would have kept."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sts_core import Smoother, SmoothingConfig, make_teacher, spatial_temporal_smoothing

CONFIG = spatial_temporal_smoothing(0.9, 0.5, granularity="channel")
SEED = 3
State = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What is left of a training."""

    network: Callable[[], nn.Module]
    """The student as it was built."""
    start: State
    """The weights from which the teacher started."""
    followed: list[State]
    """The student wherever the teacher should have followed it: once for every step of the optimizer."""
    student: State
    """After the training and its evaluation."""
    teacher: State
    evaluated: Tensor
    """What the host's own evaluation computed."""
    compute: Callable[[State], Tensor]
    """The same with these weights, by hand."""
    config: SmoothingConfig = CONFIG
    by_position: bool = False
    """Whether the host knows parameters by their positions instead of by names."""


Train = Callable[..., Trained]
"""train(folder, steps, accumulate=1, mixed=False), with `steps` optimizer steps in all."""


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


def images(number: int) -> Tensor:
    return torch.randn(4, 4, generator=torch.Generator().manual_seed(number))


LABELS = torch.arange(4) % 3


def copied(module: nn.Module) -> State:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def named(module: nn.Module, values: Iterable[Tensor]) -> State:
    """A list of parameters by the names that they have in a module."""
    return {name: value.detach().clone() for (name, _), value in zip(module.named_parameters(), values, strict=True)}


def computed(state: State) -> Tensor:
    """What the network makes of a batch with these weights."""
    module = network().eval()
    module.load_state_dict(state)
    with torch.no_grad():
        return module(images(99))  # type: ignore[no-any-return]


def replayed(trained: Trained) -> State:
    """The teacher that a plain loop keeps of these students; without buffers where the host leaves them alone."""
    student = trained.network()
    student.load_state_dict(trained.start)
    followed = nn.ParameterList(student.parameters()) if trained.by_position else student
    teacher = make_teacher(followed)
    smoother = Smoother(student=followed, teacher=teacher, config=trained.config, seed=SEED)
    for state in trained.followed:
        student.load_state_dict(state)
        smoother.update()
    is_whole = not trained.by_position and trained.config.buffers == "copy"
    return copied(teacher) if is_whole else named(student, teacher.parameters())
