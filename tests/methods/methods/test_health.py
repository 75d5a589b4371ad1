"""Health metrics: what they say of collapsed, low-rank and healthy embeddings."""

import pytest
import torch
from torch import nn

from sts_methods.methods.health import effective_rank, feature_std, health_metrics, relative_weight_distance


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_collapsed_embeddings_have_no_spread_and_no_rank() -> None:
    collapsed = normal(1, 16).expand(32, 16) * torch.rand(32, 1, generator=torch.Generator().manual_seed(1)).add(0.5)
    assert feature_std(collapsed).item() == pytest.approx(0.0, abs=1e-6)
    assert effective_rank(collapsed).item() < 0.1


def test_evenly_spread_embeddings_have_std_one_over_root_d() -> None:
    assert feature_std(normal(4096, 64)).item() == pytest.approx(64**-0.5, rel=0.02)


@pytest.mark.parametrize("rank", [1, 3, 8])
def test_effective_rank_counts_the_directions_in_use(rank: int) -> None:
    directions = torch.linalg.qr(normal(16, 16)).Q[:rank]
    embeddings = torch.cat([directions, -directions]).repeat(4, 1)
    assert effective_rank(embeddings).item() == pytest.approx(rank, rel=1e-4)


@pytest.mark.parametrize("shape", [(10, 40), (40, 10)])
def test_effective_rank_equals_the_participation_ratio_of_the_spectrum(shape: tuple[int, int]) -> None:
    embeddings = normal(*shape)
    rows = (embeddings / embeddings.norm(dim=1, keepdim=True)).double()
    values = torch.linalg.eigvalsh(torch.cov(rows.T, correction=0))
    expected = values.sum() ** 2 / (values**2).sum()
    assert effective_rank(embeddings).item() == pytest.approx(expected.item(), rel=1e-4)


def test_metrics_are_detached_scalars() -> None:
    student = normal(8, 4).requires_grad_()
    metrics = health_metrics(student, normal(8, 4, seed=1))
    assert set(metrics) == {"feature_std", "effective_rank", "student_teacher_distance"}
    assert all(value.shape == () and not value.requires_grad for value in metrics.values())


def test_relative_weight_distance_pairs_parameters_by_name() -> None:
    teacher = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(2, 2)})
    student = nn.ModuleDict({"b": nn.Linear(2, 2), "extra": nn.Linear(9, 9), "a": nn.Linear(3, 2)})
    mine, theirs = student.state_dict(), teacher.state_dict()
    gap = sum(((mine[name] - theirs[name]) ** 2).sum() for name in theirs) ** 0.5
    norm = sum((mine[name] ** 2).sum() for name in theirs) ** 0.5
    assert relative_weight_distance(student, teacher).item() == pytest.approx(float(gap / norm), rel=1e-5)
    student.load_state_dict(teacher.state_dict(), strict=False)
    assert relative_weight_distance(student, teacher).item() == 0.0
