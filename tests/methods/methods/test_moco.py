"""MoCo: the queue, the shuffling, and the loss against a brute-force computation."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sts_core import ConfigError
from sts_methods import Batch, MoCo, MoCoConfig
from sts_methods.methods.moco import shuffle_order
from sts_methods.networks.batch_norm import GroupBatchNorm
from sts_methods.networks.heads import Encoder


def small(**changes: object) -> MoCoConfig:
    values = {"backbone": "wrn_10_1", "stem": "cifar", "dim": 8, "queue_size": 10, "bn_groups": 2, **changes}
    return MoCoConfig(**values)  # type: ignore[arg-type]


def batch(num: int = 8, *, step: int = 0, seed: int = 0) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    one, two = (torch.randn(num, 3, 8, 8, generator=draw) for _ in range(2))
    return Batch(views=(one, two), indices=torch.arange(num), step=step)


def slow_loss(method: MoCo, views: tuple[Tensor, ...], order: list[int]) -> float:
    """Query by query: keys are computed in the shuffled order and looked up by where their image went."""
    queries = F.normalize(method.student(views[0]), dim=1).tolist()
    shuffled = F.normalize(method.teacher(views[1][order]), dim=1).tolist()
    total = 0.0
    for i, query in enumerate(queries):
        candidates = [shuffled[order.index(i)], *method.queue.tolist()]
        scores = [sum(q * k for q, k in zip(query, key, strict=True)) / 0.2 for key in candidates]
        total -= scores[0] - math.log(sum(math.exp(score) for score in scores))
    return total / len(queries)


@torch.no_grad()
def test_the_loss_equals_a_brute_force_computation() -> None:
    order = shuffle_order(8, seed=4, step=3).tolist()
    expected = slow_loss(MoCo(small(), seed=4), batch().views, order)
    assert MoCo(small(), seed=4)(batch(step=3)).loss.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("sizes", [[3, 3, 3, 3], [4, 10, 7], [25, 1], [10, 10]])
def test_the_queue_is_a_ring_for_any_batch_size(sizes: list[int]) -> None:
    method = MoCo(small(), seed=0)
    ring, position, next_value = method.queue.tolist(), 0, 1.0
    for size in sizes:
        keys = torch.arange(next_value, next_value + size).unsqueeze(1).expand(size, 8)
        next_value += size
        method._enqueue(keys)
        for key in keys.tolist():  # one at a time
            ring[position] = key
            position = (position + 1) % 10
    assert method.queue.tolist() == ring
    assert int(method.queue_position) == position


def test_keys_enter_the_queue_after_the_logits_and_are_normalised() -> None:
    method = MoCo(small(), seed=0)
    before = method.queue.clone()
    first = method(batch()).loss
    assert torch.equal(method.queue[8:], before[8:])
    assert not torch.isclose(method.queue[:8], before[:8]).all(dim=1).any()
    torch.testing.assert_close(method.queue.norm(dim=1), torch.ones(10))
    fresh = MoCo(small(), seed=0)
    fresh._enqueue(method.queue[:8])  # had the keys entered before the logits, the loss would be this one
    assert not torch.isclose(first, fresh(batch()).loss, atol=1e-4)


def test_the_queue_is_part_of_the_state() -> None:
    method = MoCo(small(), seed=0)
    method(batch())
    restored = MoCo(small(), seed=9)
    restored.load_state_dict(method.state_dict())
    assert torch.equal(restored.queue, method.queue)
    assert int(restored.queue_position) == 8


def key_groups(method: MoCo, *, step: int, num: int = 32) -> list[int]:
    """For each image of the batch, the batch norm group in which the teacher sees its second view."""
    images = torch.arange(float(num)).view(num, 1, 1, 1).expand(num, 3, 4, 4) / num  # the brightness is the number
    seen: list[Tensor] = []
    handle = method.teacher.backbone.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.no_grad():
        method(Batch(views=(images, images), indices=torch.arange(num), step=step))
    handle.remove()
    numbers = (seen[0][:, 0, 0, 0] * num).round().long().tolist()
    return [numbers.index(image) // (num // method.config.bn_groups) for image in range(num)]


def test_shuffling_puts_keys_into_groups_at_random() -> None:
    query_groups = [image // 8 for image in range(32)]
    assert key_groups(MoCo(small(shuffle=False, bn_groups=4), seed=0), step=0) == query_groups
    shuffled = MoCo(small(bn_groups=4), seed=0)
    groups = [key_groups(shuffled, step=step) for step in range(20)]
    same = sum(a == b for step in groups for a, b in zip(step, query_groups, strict=True)) / (20 * 32)
    assert 0.18 < same < 0.32  # a quarter is chance for four groups
    assert all(sorted(step) == query_groups for step in groups)  # and every group has its eight images


def normalising_means(method: MoCo, network: Encoder, images: Tensor, *, step: int) -> Tensor:
    """For each image, the mean that its first batch norm in `network` subtracts, from what goes in and comes out."""
    norm = next(m for m in network.modules() if isinstance(m, GroupBatchNorm))
    seen: list[Tensor] = []
    handles = [
        network.backbone.register_forward_pre_hook(lambda _, args: seen.append(args[0][:, 0, 0, 0])),
        norm.register_forward_hook(lambda _, args, out: seen.extend((args[0][:, 0].flatten(1), out[:, 0].flatten(1)))),
    ]
    with torch.no_grad():
        method(Batch(views=(images, images), indices=torch.arange(len(images)), step=step))
    for handle in handles:
        handle.remove()
    pixels, x, y = seen
    std = (x.amax(dim=1) - x.amin(dim=1)) / (y.amax(dim=1) - y.amin(dim=1))
    means = x.amax(dim=1) - y.amax(dim=1) * std  # y = (x - mean)/std, since the layer is as it was initialised
    places = [pixels.tolist().index(pixel) for pixel in images[:, 0, 0, 0].tolist()]
    return means[places]


@pytest.mark.slow
def test_shuffling_separates_the_statistics_of_a_query_from_those_of_its_key() -> None:
    """Correlation over images between the mean that normalises the query and the mean that normalises the key."""

    def correlation(method: MoCo) -> float:
        pairs = []
        for step in range(20):
            draw = torch.Generator().manual_seed(step)
            images = torch.randn(32, 1, 1, 1, generator=draw) + 0.1 * torch.randn(32, 3, 4, 4, generator=draw)
            query, key = (normalising_means(method, n, images, step=step) for n in (method.student, method.teacher))
            groups = query.view(4, 8)
            assert (groups - groups[:, :1]).abs().max() < 1e-4 < groups[:, 0].std()
            pairs.append(torch.stack([query, key]))
        return float(torch.corrcoef(torch.cat(pairs, dim=1))[0, 1])

    assert correlation(MoCo(small(shuffle=False, bn_groups=4), seed=0)) == pytest.approx(1.0, abs=1e-4)
    assert abs(correlation(MoCo(small(bn_groups=4), seed=0))) < 0.5


def test_the_order_is_a_pure_function_of_seed_and_step() -> None:
    order = shuffle_order(32, seed=1, step=5)
    assert sorted(order.tolist()) == list(range(32))
    assert torch.equal(order, shuffle_order(32, seed=1, step=5))
    assert not torch.equal(order, shuffle_order(32, seed=1, step=6))
    assert not torch.equal(order, shuffle_order(32, seed=2, step=5))


def test_gradients_reach_all_of_the_student_and_none_of_the_teacher() -> None:
    method = MoCo(small(), seed=0)
    method(batch()).loss.backward()
    assert all(p.grad is not None for p in method.student.parameters())
    assert all(p.grad is None and not p.requires_grad for p in method.teacher.parameters())


def test_the_head_has_no_batch_norm_and_the_width_of_the_features() -> None:
    head = MoCo(MoCoConfig(backbone="wrn_10_1", stem="cifar", queue_size=16), seed=0).student.head
    assert [type(layer) for layer in head.children()] == [nn.Linear, nn.ReLU, nn.Linear]
    assert {name: tuple(p.shape) for name, p in head.named_parameters()} == {
        "0.weight": (64, 64),
        "0.bias": (64,),
        "2.weight": (128, 64),
        "2.bias": (128,),
    }


def test_a_negative_temperature_is_refused() -> None:
    with pytest.raises(ConfigError, match="temperature must be positive"):
        small(temperature=-0.2)
