"""FixMatch: who labels, what counts as a label, and one forward pass for all images."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sts_core import ConfigError, Smoother, temporal_moving_average
from sts_methods import Batch, FixMatch, FixMatchConfig


def small(**changes: object) -> FixMatchConfig:
    values = {"backbone": "wrn_10_1", "stem": "cifar", "num_classes": 3, "threshold": 0.45, **changes}
    return FixMatchConfig(**values)  # type: ignore[arg-type]


def batch(*, seed: int = 0) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    labelled = torch.randn(4, 3, 8, 8, generator=draw)
    weak, strong = (torch.randn(12, 3, 8, 8, generator=draw) for _ in range(2))
    labels = torch.tensor([0, 2, 1, 1])
    return Batch(views=(weak, strong), indices=torch.arange(12), step=0, labelled=labelled, labels=labels)


def method(*, teacher_seed: int | None = None, **changes: object) -> FixMatch:
    """A method whose teacher, given a seed, has weights of its own."""
    result = FixMatch(small(**changes), seed=0)
    if teacher_seed is not None:
        result.teacher.load_state_dict(FixMatch(small(), seed=teacher_seed).teacher.state_dict())
    return result


def slow_loss(fresh: FixMatch, labelling_logits: Tensor, logits: Tensor) -> tuple[Tensor, float]:
    """Image by image; `logits` are the student's of labelled, weak and strong images in one pass."""
    data = batch()
    _, labels = data.labelled_part()
    total = F.cross_entropy(logits[:4], labels)
    confident = 0
    for weak, strong in zip(labelling_logits.softmax(dim=1), logits[16:], strict=True):
        if weak.max() >= fresh.config.threshold:
            confident += 1
            total = total - strong.log_softmax(dim=0)[weak.argmax()] / 12
    return total, confident / 12


def one_pass(fresh: FixMatch) -> Tensor:
    data = batch()
    labelled, _ = data.labelled_part()
    return fresh.student(torch.cat([labelled, *data.views]))  # type: ignore[no-any-return]


@torch.no_grad()
def test_the_student_labels_in_its_own_forward_pass_by_default() -> None:
    fresh = method(teacher_seed=5)
    logits = one_pass(fresh)
    expected, confident = slow_loss(fresh, logits[4:16], logits)
    assert 0.0 < confident < 1.0  # otherwise this test would not see the threshold
    result = method(teacher_seed=5)(batch())
    torch.testing.assert_close(result.loss, expected)
    assert result.metrics["mask_ratio"].item() == pytest.approx(confident)


@torch.no_grad()
def test_the_teacher_labels_in_eval_mode_when_asked() -> None:
    fresh = method(teacher_seed=5)
    expected, confident = slow_loss(fresh, fresh.teacher.eval()(batch().views[0]), one_pass(fresh))
    assert 0.0 < confident < 1.0
    result = method(teacher_seed=5, pseudo_labels="teacher")(batch())
    torch.testing.assert_close(result.loss, expected)
    assert result.metrics["mask_ratio"].item() == pytest.approx(confident)


@torch.no_grad()
def test_the_teachers_weights_matter_only_when_the_teacher_labels() -> None:
    student_labels = [method(teacher_seed=seed)(batch()).loss for seed in (5, 6)]
    assert torch.equal(*student_labels)
    one, other = (method(teacher_seed=seed, pseudo_labels="teacher")(batch()).loss for seed in (5, 6))
    assert not torch.isclose(one, other, atol=1e-4)


def test_no_image_counts_above_an_unreachable_threshold() -> None:
    result = method(threshold=1.0)(batch())
    assert result.metrics["mask_ratio"].item() == 0.0
    assert result.metrics["unsupervised_loss"].item() == 0.0
    assert torch.equal(result.loss.detach(), result.metrics["supervised_loss"])


def test_the_unlabelled_loss_has_its_weight() -> None:
    metrics = method()(batch()).metrics
    loss = method(unlabelled_weight=2.5)(batch()).loss
    torch.testing.assert_close(loss.detach(), metrics["supervised_loss"] + 2.5 * metrics["unsupervised_loss"])


def test_the_student_sees_all_images_in_one_forward_pass() -> None:
    learner = method()
    sizes: list[int] = []
    learner.student.backbone.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    learner(batch())
    assert sizes == [4 + 12 + 12]


def test_the_teacher_stays_in_eval_mode_and_gets_the_students_statistics() -> None:
    learner = method(pseudo_labels="teacher").train()
    assert not any(m.training for m in learner.teacher.modules())
    assert all(m.training for m in learner.student.modules())
    config = temporal_moving_average(0.999, buffers=learner.teacher_buffers)
    smoother = Smoother(student=learner.student, teacher=learner.teacher, config=config, seed=0)
    learner(batch())
    smoother.update()
    buffers = dict(learner.student.named_buffers())
    assert all(torch.equal(buffers[name], tensor) for name, tensor in learner.teacher.named_buffers())
    assert any(not torch.equal(b, torch.zeros_like(b)) for n, b in buffers.items() if n.endswith("running_mean"))


def test_gradients_reach_all_of_the_student_and_none_of_the_teacher() -> None:
    learner = method(pseudo_labels="teacher", threshold=0.0)
    learner(batch()).loss.backward()
    assert all(p.grad is not None for p in learner.student.parameters())
    assert all(p.grad is None and not p.requires_grad for p in learner.teacher.parameters())


def test_the_classifier_starts_with_zero_biases() -> None:
    head = method().student.head
    assert isinstance(head, nn.Linear)
    assert torch.equal(head.bias, torch.zeros(3))


def test_a_batch_without_labels_is_refused() -> None:
    data = batch()
    with pytest.raises(ConfigError, match="learns from labels too"):
        method()(Batch(views=data.views, indices=data.indices, step=0))


def test_an_unknown_labeller_is_refused() -> None:
    with pytest.raises(ConfigError, match="pseudo_labels must be"):
        small(pseudo_labels="nobody")


@pytest.mark.parametrize("threshold", [95, -0.1, float("nan")])
def test_a_threshold_that_is_no_probability_is_refused(threshold: float) -> None:
    with pytest.raises(ConfigError, match="threshold must be a probability"):
        small(threshold=threshold)
