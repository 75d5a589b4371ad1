"""The update equals the paper's pseudo-code, with every kernel and at every granularity, and obeys its identities."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from sts_core import Smoother, SmoothingConfig, make_teacher, no_smoothing, spatial_ensemble, temporal_moving_average
from tests.core.networks import Net, moved
from tests.core.paper import PaperDraws, paper_update

GRANULARITIES = ["layer", "module", "channel", "neuron"]
KERNELS = ["reference", "native"]


def smoother(student: nn.Module, teacher: nn.Module, backend: str, **config: object) -> Smoother:
    return Smoother(student=student, teacher=teacher, config=SmoothingConfig(**config), seed=12, backend=backend)


@pytest.mark.slow
@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize(("m", "p"), [(0.99, 0.7), (0.3, 0.5), (0.0, 0.9), (0.9, 0.97), (0.0, 0.99)])
def test_update_equals_the_papers_pseudo_code(
    student: nn.Module, draws: PaperDraws, backend: str, granularity: str, m: float, p: float
) -> None:
    teacher = moved(student)
    expected = copy.deepcopy(teacher)
    s = smoother(student, teacher, backend, momentum=m, preserve_probability=p, granularity=granularity)
    for step in range(3):
        before = copy.deepcopy(teacher)
        s.update()
        paper_update(student, expected, draws, m=m, p=p, granularity=granularity, step=step)
        for (name, ours), theirs, old in zip(
            teacher.named_parameters(), expected.parameters(), before.parameters(), strict=True
        ):
            assert torch.equal(ours != old, theirs != old), f"{name}: other units moved"
            torch.testing.assert_close(ours, theirs, rtol=3e-7, atol=1e-7, msg=name)
            theirs.data = ours.detach().clone()  # differences of rounding must not add up


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_p_zero_is_the_moving_average(student: nn.Module, backend: str, granularity: str) -> None:
    teacher = moved(student)
    expected = [
        0.99 * t.detach() + 0.01 * s.detach() for s, t in zip(student.parameters(), teacher.parameters(), strict=True)
    ]
    smoother(student, teacher, backend, momentum=0.99, preserve_probability=0.0, granularity=granularity).update()
    for ours, theirs in zip(teacher.parameters(), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=3e-7, atol=1e-7)


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize(("granularity", "p"), [*((g, 0.5) for g in GRANULARITIES), ("neuron", 0.98)])
def test_m_zero_leaves_only_old_or_new_values(student: nn.Module, backend: str, granularity: str, p: float) -> None:
    teacher = moved(student)
    before = copy.deepcopy(teacher)
    s = smoother(student, teacher, backend, momentum=0.0, preserve_probability=p, granularity=granularity)
    s.update()
    old, new = 0, 0
    for t, b, s_ in zip(teacher.parameters(), before.parameters(), student.parameters(), strict=True):
        assert bool(((t == b) | (t == s_)).all())
        old, new = old + int((t == b).sum()), new + int((t == s_).sum())
    assert old > 0
    assert new > 0


@pytest.mark.parametrize("backend", KERNELS)
def test_no_smoothing_is_a_bit_exact_copy_even_of_nan_and_infinity(student: nn.Module, backend: str) -> None:
    teacher = moved(student)
    with torch.no_grad():
        student.head.weight[0, :4] = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0])
    Smoother(student=student, teacher=teacher, config=no_smoothing(), seed=0, backend=backend).update()
    for ours, theirs in zip(teacher.parameters(), student.parameters(), strict=True):
        assert torch.equal(ours.detach().view(torch.int32), theirs.detach().view(torch.int32))


@pytest.mark.parametrize("backend", KERNELS)
def test_p_one_changes_nothing(student: nn.Module, backend: str) -> None:
    with pytest.warns(UserWarning, match="freezes the teacher"):
        config = spatial_ensemble(1.0)
    teacher = moved(student)
    before = copy.deepcopy(teacher)
    Smoother(student=student, teacher=teacher, config=config, seed=0, backend=backend).update()
    for ours, theirs in zip(teacher.parameters(), before.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_arguments_of_update_override_the_config(student: nn.Module) -> None:
    teacher = moved(student)
    s = smoother(student, teacher, "auto", momentum=0.9, preserve_probability=0.5)
    s.update(momentum=0.0, preserve_probability=0.0)
    assert torch.equal(teacher.conv.weight, student.conv.weight)
    assert (s.applied.momentum, s.applied.preserve_probability) == (0.0, 0.0)
    assert s.step == 1


def test_an_invalid_override_changes_nothing(student: nn.Module) -> None:
    teacher = moved(student)
    before = copy.deepcopy(teacher)
    s = smoother(student, teacher, "auto", momentum=0.9, preserve_probability=0.5)
    with pytest.raises(ValueError, match=r"momentum must be in \[0, 1\], got 1.5"):
        s.update(momentum=1.5)
    assert s.step == 0
    assert torch.equal(teacher.conv.weight, before.conv.weight)


@pytest.mark.parametrize(("policy", "mean", "count"), [("copy", "student", "student"), ("keep", "teacher", "teacher")])
def test_buffers_are_copied_or_kept(student: nn.Module, policy: str, mean: str, count: str) -> None:
    teacher = make_teacher(student)
    student.norm.running_mean.fill_(8.0)
    student.norm.num_batches_tracked.fill_(5)
    s = Smoother(student=student, teacher=teacher, config=replace(temporal_moving_average(0.5), buffers=policy), seed=0)
    s.update()
    assert float(teacher.norm.running_mean[0]) == {"student": 8.0, "teacher": 0.0}[mean]
    assert int(teacher.norm.num_batches_tracked) == {"student": 5, "teacher": 0}[count]


def test_smoothed_buffers_follow_the_rule_and_integers_are_copied(student: nn.Module) -> None:
    teacher = make_teacher(student)
    student.norm.running_mean.fill_(8.0)
    student.norm.num_batches_tracked.fill_(5)
    config = replace(temporal_moving_average(0.75), buffers="smooth")
    Smoother(student=student, teacher=teacher, config=config, seed=0).update()
    assert float(teacher.norm.running_mean[0]) == 2.0
    assert int(teacher.norm.num_batches_tracked) == 5


def test_frozen_student_parameters_are_followed(student: nn.Module) -> None:
    student.conv.weight.requires_grad_(False)
    teacher = moved(student)
    Smoother(student=student, teacher=teacher, config=no_smoothing(), seed=0).update()
    assert torch.equal(teacher.conv.weight, student.conv.weight)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", KERNELS)
def test_a_float32_teacher_follows_a_16_bit_student(dtype: torch.dtype, backend: str) -> None:
    student = Net().to(dtype)
    teacher = make_teacher(student)
    assert teacher.conv.weight.dtype == torch.float32
    with torch.no_grad():
        student.conv.weight.add_(1)
    before = teacher.conv.weight.clone()
    smoother(student, teacher, backend, momentum=0.999, preserve_probability=0.0).update()
    expected = before + 0.001 * (student.conv.weight.float() - before)
    torch.testing.assert_close(teacher.conv.weight, expected, rtol=1e-6, atol=1e-7)
    assert not torch.equal(teacher.conv.weight, before)


@pytest.mark.parametrize("value", [6e-8, -3e-5, 65504.0, float("inf"), -float("inf")])
def test_float16_extremes_are_widened_exactly(value: float) -> None:
    student = nn.Linear(40, 3).half()
    teacher = make_teacher(student)
    with torch.no_grad():
        student.weight.fill_(value)
    Smoother(student=student, teacher=teacher, config=no_smoothing(), seed=0, backend="native").update()
    assert torch.equal(teacher.weight, student.weight.float())
