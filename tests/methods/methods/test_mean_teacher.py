"""Mean Teacher: its two costs, the ramp-up, and a teacher in train mode."""

import math

import pytest
import torch
import torch.nn.functional as F

from sts_methods import Batch, MeanTeacher, MeanTeacherConfig
from sts_methods.methods.mean_teacher import consistency_weight

SMALL = MeanTeacherConfig(backbone="wrn_10_1", stem="cifar", num_classes=3, ramp_up_steps=10)


def batch(*, step: int = 0, seed: int = 0) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    labelled = torch.randn(4, 3, 8, 8, generator=draw)
    one, two = (torch.randn(6, 3, 8, 8, generator=draw) for _ in range(2))
    labels = torch.tensor([0, 2, 1, 1])
    return Batch(views=(one, two), indices=torch.arange(6), step=step, labelled=labelled, labels=labels)


def test_the_loss_is_classification_plus_weighted_consistency() -> None:
    data, fresh = batch(step=4), MeanTeacher(SMALL, seed=0)
    labelled, labels = data.labelled_part()
    logits = fresh.student(torch.cat([labelled, data.views[0]]))
    target = fresh.teacher(data.views[1]).softmax(dim=1)
    squares = ((logits[4:].softmax(dim=1) - target) ** 2).sum() / (6 * 3)
    weight = 100.0 * math.exp(-5.0 * (1 - 0.4) ** 2)
    expected = F.cross_entropy(logits[:4], labels) + weight * squares
    torch.testing.assert_close(MeanTeacher(SMALL, seed=0)(data).loss, expected)


def test_the_consistency_weight_rises_to_its_value_and_stays() -> None:
    weights = [consistency_weight(step, SMALL) for step in (0, 5, 10, 11, 1000)]
    assert weights[0] == pytest.approx(100.0 * math.exp(-5.0))
    assert weights[1] == pytest.approx(100.0 * math.exp(-1.25))
    assert weights[2:] == [100.0, 100.0, 100.0]
    immediate = MeanTeacherConfig(backbone="wrn_10_1", num_classes=3, ramp_up_steps=0)
    assert consistency_weight(0, immediate) == 100.0


def test_the_teacher_runs_in_train_mode_with_statistics_of_its_own() -> None:
    method = MeanTeacher(SMALL, seed=0)
    method(batch())
    student, teacher = dict(method.student.named_buffers()), dict(method.teacher.named_buffers())
    moved = [name for name in teacher if name.endswith("running_mean")]
    assert moved
    assert all(teacher[name].abs().sum() > 0 for name in moved)
    assert any(not torch.equal(teacher[name], student[name]) for name in moved)


def test_gradients_reach_all_of_the_student_and_none_of_the_teacher() -> None:
    method = MeanTeacher(SMALL, seed=0)
    method(batch()).loss.backward()
    assert all(p.grad is not None for p in method.student.parameters())
    assert all(p.grad is None and not p.requires_grad for p in method.teacher.parameters())
