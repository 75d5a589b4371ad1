"""Batch norms in one process; test_ranks.py holds their comparison with several."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from timm.layers import BatchNormAct2d
from torch import Tensor, nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from sts_core import ConfigError
from sts_methods.networks.batch_norm import (
    CrossRankBatchNorm,
    GroupBatchNorm,
    average_running_statistics,
    use_cross_rank_batch_norm,
    use_group_batch_norm,
)
from sts_methods.networks.normalise import NormaliseOnDevice
from tests.methods.training import synchronised_kernels


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def network() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), BatchNormAct2d(4), nn.Flatten(), nn.Linear(4 * 36, 6), nn.BatchNorm1d(6))


def test_replacing_batch_norms_keeps_tensors_names_and_outputs() -> None:
    plain = network()
    state = {name: tensor.clone() for name, tensor in plain.state_dict().items()}
    parameters = set(plain.parameters())
    images = normal(4, 3, 8, 8)
    expected = plain(images)
    plain.load_state_dict(state)
    replaced = use_cross_rank_batch_norm(plain)
    assert not any(type(m) in (nn.BatchNorm1d, BatchNormAct2d) for m in replaced.modules())
    assert list(replaced.state_dict()) == list(state)
    assert set(replaced.parameters()) == parameters
    assert torch.equal(replaced(images), expected)  # timm's activation included
    assert torch.equal(replaced.eval()(images), network_in_eval(state, replaced.state_dict(), images))


def network_in_eval(first: dict[str, Tensor], trained: dict[str, Tensor], images: Tensor) -> Tensor:
    plain = network()
    plain.load_state_dict({**first, **trained})
    return plain.eval()(images)  # type: ignore[no-any-return]


@pytest.mark.parametrize("shape", [(12, 5, 3, 3), (12, 5)])
def test_group_batch_norm_normalises_every_group_by_its_own_statistics(shape: tuple[int, ...]) -> None:
    grouped = GroupBatchNorm(5, num_groups=3)
    x = normal(*shape).requires_grad_()
    y = grouped(x)
    y.backward(normal(*shape, seed=1))
    for i, group in enumerate(x.detach().chunk(3)):
        alone = nn.BatchNorm1d(5) if len(shape) == 2 else nn.BatchNorm2d(5)
        part = group.clone().requires_grad_()
        expected = alone(part)
        expected.backward(normal(*shape, seed=1).chunk(3)[i])
        torch.testing.assert_close(y.detach().chunk(3)[i], expected.detach())
        assert x.grad is not None
        torch.testing.assert_close(x.grad.chunk(3)[i], part.grad)


def test_groups_in_float64_have_the_statistics_of_separate_batches() -> None:
    x = normal(6, 5, 3, 3).double()
    grouped = GroupBatchNorm(5, num_groups=3).double()
    expected = torch.cat([nn.BatchNorm2d(5).double()(part) for part in x.chunk(3)])
    torch.testing.assert_close(grouped(x), expected, rtol=1e-12, atol=1e-12)
    assert grouped.running_mean is not None
    torch.testing.assert_close(grouped.running_mean, 0.1 * x.mean(dim=(0, 2, 3)), rtol=1e-12, atol=1e-12)


def test_running_statistics_follow_the_mean_over_groups() -> None:
    grouped = GroupBatchNorm(5, num_groups=3)
    x = normal(12, 5)
    grouped(x)
    groups = x.chunk(3)
    mean = torch.stack([group.mean(0) for group in groups]).mean(0)
    variance = torch.stack([group.var(0) for group in groups]).mean(0)
    assert grouped.running_mean is not None
    assert grouped.running_var is not None
    torch.testing.assert_close(grouped.running_mean, 0.1 * mean)
    torch.testing.assert_close(grouped.running_var, 0.9 + 0.1 * variance)
    assert int(grouped.num_batches_tracked or 0) == 1


def test_one_group_is_plain_batch_norm_and_evaluation_ignores_groups() -> None:
    plain, single, grouped = nn.BatchNorm2d(5), GroupBatchNorm(5, num_groups=1), GroupBatchNorm(5, num_groups=2)
    x = normal(8, 5, 3, 3)
    assert torch.equal(single(x), plain(x))
    grouped.load_state_dict(plain.state_dict())
    assert torch.equal(grouped.eval()(x), plain.eval()(x))


def test_group_batch_norm_keeps_channels_last() -> None:
    x = normal(8, 5, 3, 3).to(memory_format=torch.channels_last)
    assert GroupBatchNorm(5, num_groups=2)(x).is_contiguous(memory_format=torch.channels_last)


def test_a_batch_that_does_not_split_into_groups_is_an_error() -> None:
    with pytest.raises(ConfigError, match="7 samples for 2 groups"):
        GroupBatchNorm(5, num_groups=2)(normal(7, 5))


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (GroupBatchNorm(5, num_groups=2), (2, 5, 1, 1)),
        (GroupBatchNorm(5, num_groups=1), (1, 5)),
        (CrossRankBatchNorm(5), (1, 5)),
    ],
)
def test_a_group_of_one_value_a_channel_is_an_error_in_training_alone(norm: nn.Module, shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="at least two values a channel"):
        norm(normal(*shape))
    assert norm.eval()(normal(*shape)).shape == shape
    assert norm.train()(normal(*shape[:1], 5, 2, 2)).isfinite().all()


def test_averaging_over_ranks_does_nothing_in_one_process() -> None:
    grouped = use_group_batch_norm(nn.Sequential(nn.BatchNorm1d(5)), num_groups=2)
    grouped(normal(8, 5))
    before = {name: tensor.clone() for name, tensor in grouped.state_dict().items()}
    average_running_statistics(grouped)
    assert all(torch.equal(before[name], tensor) for name, tensor in grouped.state_dict().items())


def test_cross_rank_batch_norm_in_one_process_is_plain_batch_norm() -> None:
    plain, ours = nn.BatchNorm2d(5), CrossRankBatchNorm(5)
    x = normal(8, 5, 3, 3)
    assert torch.equal(ours(x), plain(x))
    assert all(torch.equal(tensor, ours.state_dict()[name]) for name, tensor in plain.state_dict().items())


@pytest.fixture
def two_ranks() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("two_ranks")
def test_statistics_have_a_queue_of_their_own_in_which_no_gradients_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[Any] = []

    def gather(gathered: Tensor, local: Tensor, group: Any) -> None:
        used.append(group)
        gathered.view(2, -1).copy_(local)

    monkeypatch.setattr(dist, "all_gather_into_tensor", gather)
    monkeypatch.setattr(dist, "all_reduce", lambda sums, group: used.append(group))
    for name in vars(synchronised_kernels):
        if name.startswith("batch_norm_"):
            monkeypatch.setattr(torch, name, getattr(synchronised_kernels, name))
    monkeypatch.setattr(torch, "batch_norm_elemt", lambda x, *rest, out: out.copy_(x))
    x = torch.randn(4, 3, 2, 2, requires_grad=True)
    norm = nn.BatchNorm2d(3)
    y = NormaliseOnDevice.apply(x, norm.weight, norm.bias, norm.running_mean, norm.running_var, [0.1], 1e-5)
    y.square().sum().backward()  # type: ignore[no-untyped-call]
    assert len(used) == 2
    assert used[0] is used[1]
    assert used[0] is not dist.group.WORLD
    assert dist.get_process_group_ranks(used[0]) == [0, 1]
