"""BYOL: its loss from the paper, its two networks, and what each variant changes."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sts_methods import Batch, Byol, ByolConfig
from sts_methods.networks.batch_norm import CrossRankBatchNorm

SMALL = ByolConfig(backbone="wrn_10_1", stem="cifar", hidden_dim=16, projection_dim=8)


def batch(num: int = 6, *, step: int = 0, seed: int = 0) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    one, two = (torch.randn(num, 3, 8, 8, generator=draw) for _ in range(2))
    return Batch(views=(one, two), indices=torch.arange(num), step=step)


def slow_loss(method: Byol, views: tuple[Tensor, ...]) -> Tensor:
    """Equation 2 of the paper, for both assignments of the views, one after the other."""
    total = torch.zeros(())
    for mine, theirs in ((0, 1), (1, 0)):
        prediction = method.student.predictor(method.student(views[mine]))
        target = method.teacher(views[theirs])
        p = prediction / prediction.norm(dim=1, keepdim=True)
        t = target / target.norm(dim=1, keepdim=True)
        total = total + ((p - t) ** 2).sum(dim=1).mean()
    return total


def test_the_loss_is_the_sum_of_the_papers_two_terms() -> None:
    method = Byol(SMALL, seed=0)
    views = batch().views
    torch.testing.assert_close(method(batch()).loss, slow_loss(Byol(SMALL, seed=0), views))


def test_the_loss_of_exact_opposites_is_eight() -> None:
    """Averaging the two terms instead of adding them once cost lightly eleven points of accuracy."""
    method = Byol(SMALL, seed=0)
    method.student.predictor = nn.Identity()
    last = method.teacher.head[3]  # type: ignore[index]
    with torch.no_grad():
        last.weight.neg_()
        last.bias.neg_()
    one = batch().views[0]
    loss = method(Batch(views=(one, one), indices=torch.arange(6), step=0)).loss
    assert loss.item() == pytest.approx(8.0, rel=1e-5)


def test_gradients_reach_all_of_the_student_and_none_of_the_teacher() -> None:
    method = Byol(SMALL, seed=0)
    method(batch()).loss.backward()
    assert all(p.grad is not None for p in method.student.parameters())
    assert all(p.grad is None and not p.requires_grad for p in method.teacher.parameters())


def test_the_teacher_runs_in_train_mode_with_statistics_of_its_own() -> None:
    method = Byol(SMALL, seed=0)
    method(batch())
    norm = method.teacher.head[1]  # type: ignore[index]
    assert norm.training
    assert int(norm.num_batches_tracked) == 2  # one for each view
    assert not torch.equal(norm.running_mean, torch.zeros_like(norm.running_mean))


def test_concatenated_views_share_their_statistics() -> None:
    config = ByolConfig(backbone="wrn_10_1", stem="cifar", hidden_dim=16, projection_dim=8, concatenate_views=True)
    joined, separate = Byol(config, seed=0), Byol(SMALL, seed=0)
    one, two = batch().views
    student, teacher = Byol(config, seed=0).student, Byol(config, seed=0).teacher
    q1, q2 = student.predictor(student(torch.cat([one, two]))).chunk(2)
    t1, t2 = teacher(torch.cat([one, two])).chunk(2)
    expected = 4 - 2 * F.cosine_similarity(q1, t2).mean() - 2 * F.cosine_similarity(q2, t1).mean()
    torch.testing.assert_close(joined(batch()).loss, expected)
    assert not torch.isclose(joined(batch()).loss, separate(batch()).loss, atol=1e-4)


@pytest.mark.parametrize("output_bias", [True, False])
def test_heads_have_the_papers_shape_and_the_variants_bias(output_bias: bool) -> None:
    student = Byol(ByolConfig(backbone="wrn_10_1", stem="cifar", output_bias=output_bias), seed=0).student
    for head, inputs in ((student.head, 64), (student.predictor, 256)):
        assert [type(layer) for layer in head.children()] == [nn.Linear, CrossRankBatchNorm, nn.ReLU, nn.Linear]
        shapes = {name: tuple(p.shape) for name, p in head.named_parameters() if not name.startswith("1.")}
        expected = {"0.weight": (4096, inputs), "0.bias": (4096,), "3.weight": (256, 4096)}
        assert shapes == expected | ({"3.bias": (256,)} if output_bias else {})


def test_the_metrics_tell_health() -> None:
    metrics = Byol(SMALL, seed=0)(batch()).metrics
    assert set(metrics) == {"feature_std", "effective_rank", "student_teacher_distance"}
    assert metrics["student_teacher_distance"].item() == pytest.approx(0.0, abs=1e-5)  # the teacher starts as a copy
