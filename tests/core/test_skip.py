"""An update that a flag leaves out: nothing moves, and once it is taken back the next one is as if it never was."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sts_core import Smoother, TeacherBank, make_teacher, spatial_temporal_smoothing

CONFIGS = {name: spatial_temporal_smoothing(0.5, 0.5, granularity=name) for name in ("layer", "channel", "neuron")}  # type: ignore[arg-type]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 9), nn.Linear(9, 5))


def moved(student: nn.Module, number: int) -> None:
    draw = torch.Generator().manual_seed(number)
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw))


def weights(module: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in module.parameters()]


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("kind", [*CONFIGS, "bank"])
def test_a_skipped_update_moves_nothing_and_taken_back_it_never_was(kind: str, backend: Any) -> None:
    def make() -> tuple[nn.Module, Any, list[nn.Module]]:
        student = network()
        if kind == "bank":
            bank = TeacherBank(student=student, configs=CONFIGS, seed=3, backend=backend)
            return student, bank, list(bank.teachers.values())
        teacher = make_teacher(student)
        return (
            student,
            Smoother(student=student, teacher=teacher, config=CONFIGS[kind], seed=3, backend=backend),
            [teacher],
        )

    student, skipping, teachers = make()
    other, plain, expected = make()
    for number in (0, 1):
        moved(student, number)
        moved(other, number)
        skipping.update(skip=torch.zeros(()))
        plain.update()
    before = [weights(teacher) for teacher in teachers]
    moved(student, 2)
    skipping.update(skip=torch.ones(()))
    assert all(same(weights(teacher), old) for teacher, old in zip(teachers, before, strict=True))
    skipping.take_back()
    assert skipping.applied == plain.applied
    moved(student, 3)
    moved(other, 3)
    skipping.update(skip=torch.zeros(()))
    plain.update()
    assert all(same(weights(a), weights(b)) for a, b in zip(teachers, expected, strict=True))
    assert skipping.state_dict()["step"] == plain.state_dict()["step"] == 3
