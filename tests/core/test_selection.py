"""A teacher of a part of the student: it has the chosen parameters of its own and shares the others."""

import re

import pytest
import torch
from torch import Tensor, nn

from sts_core import PairingError, Smoother, TeacherBank, make_teacher, temporal_moving_average
from tests.core.test_resume_and_ranks import assert_same, bits

TMA = temporal_moving_average(0.5)


class Adapted(nn.Module):
    """A frozen bfloat16 layer and a trainable low-rank addition, as LoRA has it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(6, 6, dtype=torch.bfloat16).requires_grad_(False)
        self.lora_a, self.lora_b = nn.Linear(6, 2, bias=False), nn.Linear(2, 6, bias=False)
        self.norm = nn.BatchNorm1d(6, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.base(x.bfloat16()).float() + self.lora_b(self.lora_a(x)))


@pytest.mark.parametrize("choice", [{"trainable_only": True}, {"names": "lora_*"}, {"exclude": ["base.*"]}])
def test_a_teacher_of_the_adapters_shares_the_frozen_base(choice: dict[str, object]) -> None:
    student = Adapted()
    teacher = make_teacher(student, **choice)
    assert teacher.base.weight is student.base.weight
    assert student.base.weight.dtype == torch.bfloat16
    assert all(weight.requires_grad for weight in student.lora_a.parameters())
    before = teacher.lora_b.weight.clone()
    with torch.no_grad():
        student.lora_b.weight.add_(2)
    smoother = Smoother(student=student, teacher=teacher, config=TMA, seed=0, **choice)
    smoother.update()
    torch.testing.assert_close(teacher.lora_b.weight, before + 1)
    own = bits(student)
    with smoother.swapped():
        assert torch.equal(student.lora_b.weight, teacher.lora_b.weight)
    assert_same(bits(student), own)


def test_buffers_are_the_teachers_own_whatever_is_chosen() -> None:
    student = Adapted()
    teacher = make_teacher(student, trainable_only=True)
    teacher(torch.randn(4, 6))
    assert not torch.equal(teacher.norm.running_mean, student.norm.running_mean)


def test_a_bank_of_adapters_copies_the_base_for_none_of_its_teachers() -> None:
    student = Adapted()
    bank = TeacherBank(student=student, configs={"a": TMA, "b": TMA}, seed=0, trainable_only=True)
    assert all(teacher.base.bias is student.base.bias for teacher in bank.teachers.values())
    with torch.no_grad():
        student.lora_a.weight.zero_()
    bank.update()
    assert_same(bits(bank.teachers["a"]), bits(bank.teachers["b"]))


def test_a_choice_that_the_teacher_was_not_made_with_is_told() -> None:
    student = Adapted()
    with pytest.raises(PairingError, match=r"must not share memory, but 'base.weight' is one tensor in both"):
        Smoother(student=student, teacher=make_teacher(student, trainable_only=True), config=TMA, seed=0, names="base*")
    with pytest.raises(PairingError, match=re.escape("but Selection(names='adapter*', exclude=(), ")):
        Smoother(student=student, teacher=make_teacher(student), config=TMA, seed=0, names="adapter*")


def test_a_parameter_left_out_stays_what_it_is_in_a_full_teacher() -> None:
    student = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    teacher = make_teacher(student)
    head = teacher[1].weight.clone()
    with torch.no_grad():
        student[0].weight.zero_()
        student[1].weight.zero_()
    Smoother(student=student, teacher=teacher, config=TMA, seed=0, exclude="1.*").update()
    assert torch.equal(teacher[1].weight, head)
    assert not torch.equal(teacher[0].weight, head)
