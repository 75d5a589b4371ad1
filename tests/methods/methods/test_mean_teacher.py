"""Mean Teacher: its two costs, the ramp-up, and a teacher in train mode."""

import math
from dataclasses import replace

import pytest
import torch

from sts_core.errors import ConfigError
from sts_methods import Batch, MeanTeacher, MeanTeacherConfig
from sts_methods.methods.mean_teacher import consistency_weight

SMALL = MeanTeacherConfig(backbone="wrn_10_1", stem="cifar", num_classes=3, ramp_up_steps=10, ramp_up_stages=10)


def batch(*, step: int = 0, seed: int = 0) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    labelled, teachers_labelled = (torch.randn(4, 3, 8, 8, generator=draw) for _ in range(2))
    one, two = (torch.randn(6, 3, 8, 8, generator=draw) for _ in range(2))
    return Batch(
        views=(one, two),
        indices=torch.arange(6),
        step=step,
        labelled=labelled,
        labels=torch.tensor([0, 2, 1, 1]),
        teachers_labelled=teachers_labelled,
    )


def expected_loss(method: MeanTeacher, data: Batch, weight: float, distance_cost: float | None) -> float:
    """The costs image by image: sums over the images that have them, divided by the whole minibatch of ten."""
    labelled, labels = data.labelled_part()
    features = method.student.backbone(torch.cat([labelled, data.views[0]]))
    classes = method.student.head(features)
    second = method.student.consistency_head
    consistent = classes if second is None else second(features)
    targets = method.teacher(torch.cat([data.teachers_labelled_part(), data.views[1]]))
    total = 0.0
    for image in range(10):
        if image < 4:
            total -= math.log(classes[image].softmax(dim=0)[labels[image]].item())
        for k in range(3):
            difference = consistent[image].softmax(dim=0)[k] - targets[image].softmax(dim=0)[k]
            total += weight * difference.item() ** 2 / 3
            total += (distance_cost or 0.0) * (classes[image, k] - consistent[image, k]).item() ** 2 / 3
    return total / 10


@pytest.mark.parametrize("distance_cost", [0.01, 2.0, None])
def test_the_loss_is_that_of_all_images_divided_by_the_minibatch(distance_cost: float | None) -> None:
    config = replace(SMALL, logit_distance_cost=distance_cost)
    data = batch(step=4)
    expected = expected_loss(MeanTeacher(config, seed=0), data, 100.0 * math.exp(-5.0 * (1 - 0.4) ** 2), distance_cost)
    assert MeanTeacher(config, seed=0)(data).loss.item() == pytest.approx(expected, rel=1e-5)


def test_the_consistency_weight_rises_once_an_epoch_to_its_value_and_stays() -> None:
    config = MeanTeacherConfig(num_classes=10)  # five epochs of 474 steps
    weights = [consistency_weight(474 * epoch + step, config) for epoch in range(7) for step in (0, 473)]
    expected = [100.0 * math.exp(-5.0 * (1 - min(epoch / 5, 1)) ** 2) for epoch in range(7) for _ in range(2)]
    assert weights == pytest.approx(expected)
    immediate = MeanTeacherConfig(backbone="wrn_10_1", num_classes=3, ramp_up_steps=0)
    assert consistency_weight(0, immediate) == 100.0


def test_a_batch_without_the_teachers_view_of_labelled_images_is_refused() -> None:
    with pytest.raises(ConfigError, match="second view of labelled images"):
        MeanTeacher(SMALL, seed=0)(replace(batch(), teachers_labelled=None))


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
