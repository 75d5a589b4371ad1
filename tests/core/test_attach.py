"""An attached optimizer updates the teacher once after every step that it really makes."""

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from sts_core import (
    ConfigError,
    PairingError,
    Smoother,
    StateError,
    TeacherBank,
    cosine_momentum,
    make_teacher,
    spatial_temporal_smoothing,
    temporal_moving_average,
)
from sts_core.binding import Binding
from tests.core.test_resume_and_ranks import assert_same, bits

STS = spatial_temporal_smoothing(0.9, 0.5, granularity="neuron")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


def smoother_of(student: nn.Module) -> Smoother:
    return Smoother(student=student, teacher=make_teacher(student), config=STS, seed=5)


def gradients(student: nn.Module, step: int) -> None:
    batch = torch.randn(6, 4, generator=torch.Generator().manual_seed(step))
    student(batch).square().mean().backward()


def test_attached_equals_updates_by_hand_also_under_gradient_accumulation() -> None:
    def run(attached: bool) -> Smoother:
        student = network()
        smoother = smoother_of(student)
        optimizer = torch.optim.AdamW(student.parameters(), lr=0.1)
        if attached:
            smoother.attach(optimizer)
        for micro_step in range(6):
            gradients(student, micro_step)
            if micro_step % 2:
                optimizer.step()
                optimizer.zero_grad()
                if not attached:
                    smoother.update()
        return smoother

    by_hand, attached = run(False), run(True)
    assert attached.step == by_hand.step == 3
    assert_same(bits(attached.teacher), bits(by_hand.teacher))


def test_of_several_optimizers_the_last_ones_steps_count() -> None:
    student = network()
    smoother = smoother_of(student)
    first = torch.optim.SGD(student[0].parameters(), lr=0.1)
    last = torch.optim.SGD(student[2].parameters(), lr=0.1)
    smoother.attach(first, last)
    for step in range(3):
        gradients(student, step)
        first.step()
        assert smoother.step == step
        last.step()
        assert smoother.step == step + 1


@pytest.mark.parametrize("fused", [True, False])
def test_a_step_that_the_gradient_scaler_skips_is_no_step(fused: bool) -> None:
    student = network()
    smoother = smoother_of(student)
    optimizer = torch.optim.AdamW(student.parameters(), lr=0.1, fused=fused)
    smoother.attach(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    counts = []
    for step in range(4):
        scaler.scale(student(torch.ones(2, 4)).sum()).backward()
        if step in (1, 3):
            student[0].weight.grad[0, 0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        counts.append(smoother.step)
    assert counts == [1, 1, 2, 2]


def test_a_schedule_is_a_function() -> None:
    student = network()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    bank = TeacherBank(student=student, configs={"it": STS}, seed=0)
    with pytest.raises(ConfigError, match=r"a schedule is a function of the number of updates, got 0.9"):
        smoother_of(student).attach(optimizer, momentum=0.9)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"a schedule is a function of the number of updates, got 0.9"):
        bank.attach(optimizer, momentum={"it": 0.9})  # type: ignore[dict-item]
    assert not optimizer._optimizer_step_post_hooks


def test_schedules_are_asked_for_every_update_and_go_on_after_a_resume() -> None:
    student = network()
    smoother = smoother_of(student)
    smoother.step = 7
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    smoother.attach(
        optimizer,
        momentum=lambda step: cosine_momentum(step, total_steps=10, start=0.5),
        preserve_probability=lambda step: step / 100,
    )
    for step in (7, 8):
        gradients(student, step)
        optimizer.step()
        assert smoother.applied is not None
        assert smoother.applied.momentum == cosine_momentum(step, total_steps=10, start=0.5)
        assert smoother.applied.preserve_probability == step / 100


def test_a_bank_can_be_attached_and_detached() -> None:
    student = network()
    bank = TeacherBank(student=student, configs={"tma": temporal_moving_average(0.9), "sts": STS}, seed=5)
    alone = smoother_of(student)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    handles = [bank.attach(optimizer), alone.attach(optimizer)]
    gradients(student, 0)
    optimizer.step()
    assert_same(bits(bank.teachers["sts"]), bits(alone.teacher))
    for handle in handles:
        handle.detach()
        assert not handle.is_active
        handle.detach()
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    optimizer.step()
    assert bank.step == alone.step == 1
    bank.update()
    assert bank.step == 2


def test_a_wrapper_without_hooks_is_seen_through() -> None:
    student = network()
    smoother = smoother_of(student)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    smoother.attach(SimpleNamespace(optimizer=optimizer))
    gradients(student, 0)
    optimizer.step()
    assert smoother.step == 1


def test_what_cannot_be_attached_is_told_in_a_sentence_and_leaves_nothing_behind() -> None:
    student = network()
    smoother = smoother_of(student)
    good = torch.optim.SGD(student.parameters(), lr=0.1)
    other = torch.optim.Adam(network().parameters())
    with pytest.raises(PairingError, match="must hold the student's parameters, but this Adam has none of them"):
        smoother.attach(good, other)
    with pytest.raises(PairingError, match=r"this SGD has none"):
        smoother.attach(torch.optim.SGD(smoother.teacher.parameters(), lr=0.1))
    with pytest.raises(ConfigError, match=re.escape("attach needs a torch.optim.Optimizer, got Sequential")):
        smoother.attach(student)
    with pytest.raises(ConfigError, match="attach needs at least one optimizer, got none"):
        smoother.attach()
    gradients(student, 0)
    good.step()
    assert smoother.step == 0


def test_updates_are_not_made_twice() -> None:
    student = network()
    smoother = smoother_of(student)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    smoother.attach(optimizer)
    with pytest.raises(StateError, match=r"update\(\) must not be called while an attached optimizer makes the"):
        smoother.update()
    with pytest.raises(StateError, match=r"attach\(\) must not be called again while an attached optimizer"):
        smoother.attach(optimizer)
    assert smoother.step == 0


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
@pytest.mark.parametrize("by_hand", [False, True])
def test_a_compiled_step_updates_as_a_plain_one_and_the_update_is_not_traced(
    by_hand: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(compiled: bool) -> Smoother:
        student = network()
        smoother = smoother_of(student)
        optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
        if not by_hand:
            smoother.attach(optimizer)

        def step(batch: torch.Tensor) -> None:
            student(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if by_hand:
                smoother.update()

        taken = torch.compile(step, backend="eager") if compiled else step
        for number in range(3):
            taken(torch.randn(6, 4, generator=torch.Generator().manual_seed(number)))
        return smoother

    plain = run(False)
    traced = []
    update = Binding.update

    def watched(*arguments: Any, **options: Any) -> Any:
        traced.append(torch.compiler.is_compiling())
        return update(*arguments, **options)

    monkeypatch.setattr(Binding, "update", watched)
    compiled = run(True)
    assert compiled.step == 3
    assert traced == [False] * 3
    assert_same(bits(compiled.teacher), bits(plain.teacher))


def test_accelerates_optimizer_is_followed_through_accumulation_and_mixed_precision() -> None:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    state = accelerate.state.AcceleratorState
    state._reset_state(reset_partial_state=True)  # one for the process, which transformers may have made
    accelerator = accelerate.Accelerator(gradient_accumulation_steps=2, cpu=True, mixed_precision="bf16")
    plain = network()
    student, optimizer = accelerator.prepare(plain, torch.optim.AdamW(plain.parameters(), lr=0.1))
    smoother = smoother_of(student)
    smoother.attach(optimizer)
    shadow = network()
    beside, counts = smoother_of(shadow), []
    for number in range(6):
        with accelerator.accumulate(student):
            batch = torch.randn(6, 4, generator=torch.Generator().manual_seed(number))
            accelerator.backward(student(batch).float().square().mean())
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            shadow.load_state_dict(plain.state_dict())
            beside.update()
        counts.append(smoother.step)
    state._reset_state(reset_partial_state=True)
    assert counts == [0, 1, 1, 2, 2, 3]
    assert_same(bits(smoother.teacher), bits(beside.teacher))
