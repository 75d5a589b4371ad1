"""A new update rule needs the reference kernel alone: the fast kernels leave its teachers out and serve the others."""

import pytest
import torch
from torch import Tensor

from sts_core import Smoother, SmoothingConfig, TeacherBank, make_teacher
from sts_core.kernels.choice import bind
from sts_core.kernels.interface import Rule, Target
from sts_core.kernels.native import NativeKernel
from sts_core.kernels.reference import update_teacher
from tests.core.kernels.test_agreement import pairs_of
from tests.core.networks import Net, moved

PLAIN = {
    "sts": SmoothingConfig(momentum=0.9, preserve_probability=0.5, granularity="neuron", buffers="keep"),
    "tma": SmoothingConfig(momentum=0.75, preserve_probability=0.0, buffers="keep"),
}


class SignConfig(SmoothingConfig):
    """Of teachers that follow SignRule."""


NEW = SignConfig(momentum=0.25, preserve_probability=0.5, buffers="keep")


class SignRule(Rule, config=SignConfig):
    """Moves every weight by 1 - m in the direction of the student's."""


@update_teacher.register
def _(rule: SignRule, tensors: list[Target]) -> None:
    for _, student, teacher, _ in tensors:
        teacher.add_(torch.sign(student - teacher), alpha=1.0 - rule.momentum)


def updated_bank(configs: dict[str, SmoothingConfig], backend: str) -> dict[str, list[Tensor]]:
    torch.manual_seed(0)
    student = Net()
    bank = TeacherBank(student=student, configs=configs, seed=3, backend=backend)  # type: ignore[arg-type]
    for _ in range(3):
        student.load_state_dict(moved(student).state_dict())
        bank.update()
    return {name: list(teacher.parameters()) for name, teacher in bank.teachers.items()}


def assert_equal(one: list[Tensor], other: list[Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_fast_kernels_support_the_rule_that_they_know_and_no_other() -> None:
    pairs = pairs_of([(7, 3)], torch.float32, "contiguous")
    rule = Rule(0.9, 0.5, "layer", 0, 0)
    for backend, others in (("native", False), ("reference", True)):
        (kernel,) = bind(pairs, backend)  # type: ignore[arg-type]
        assert kernel.supports(rule)
        assert kernel.supports(SignRule(**vars(rule))) is others


def test_a_bank_of_old_and_new_rules_sends_each_teacher_where_its_rule_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Rule] = []
    native_update = NativeKernel.update
    monkeypatch.setattr(
        NativeKernel, "update", lambda kernel, rules, skip: (seen.extend(rules), native_update(kernel, rules, skip))
    )
    mixed = updated_bank({"first": NEW, **PLAIN, "last": NEW}, "native")
    assert {type(rule) for rule in seen} == {Rule}
    assert {rule.preserve_probability for rule in seen} == {0.5, 0.0, 1.0}
    for name in ("first", "last"):
        assert_equal(mixed[name], updated_bank({"new": NEW}, "reference")["new"])
    alone = updated_bank(PLAIN, "native")
    for name in PLAIN:
        assert_equal(mixed[name], alone[name])


def test_a_smoother_with_a_new_rule_moves_every_weight_once() -> None:
    student, start = Net(), make_teacher(moved(Net()))
    teacher = make_teacher(start)
    Smoother(student=student, teacher=teacher, config=NEW, seed=0, backend="native").update()
    for s, before, after in zip(student.parameters(), start.parameters(), teacher.parameters(), strict=True):
        torch.testing.assert_close(after, before + 0.75 * torch.sign(s - before))
