"""A block of a tensor is updated as the same weights of the whole tensor are, to the bit, by every kernel."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sts_core.kernels.choice import bind
from sts_core.kernels.interface import Pair, Rule
from sts_core.sharded.blocks import Shard

SHAPES = [(), (7,), (0,), (700,), (300, 257), (5, 9000), (33, 5, 3, 3), (6, 7, 200), (40_000, 3)]


def block(shape: tuple[int, ...], cuts: list[float]) -> tuple[slice, ...]:
    """A slice in each dimension, from numbers in [0, 1]; empty ones included."""
    bounds = zip(cuts[: len(shape)], cuts[len(shape) :], strict=False)
    return tuple(
        slice(*sorted((round(a * size), round(b * size)))) for (a, b), size in zip(bounds, shape, strict=False)
    )


def updated(student: Tensor, teacher: Tensor, shard: Shard | None, rule: Rule, backend: str) -> Tensor:
    pair = Pair("block.weight", student.contiguous(), (teacher.clone().contiguous(),), shard)
    for kernel in bind([pair], backend):  # type: ignore[arg-type]
        kernel.update([rule])
    return pair.teachers[0]


@pytest.mark.slow
@settings(max_examples=250, deadline=None)
@given(
    shape=st.sampled_from(SHAPES),
    cuts=st.lists(st.sampled_from([0.0, 1.0, 0.3, 0.5, 0.52, 0.9]), min_size=8, max_size=8),
    cut_dims=st.sets(st.integers(0, 3)),
    granularity=st.sampled_from(["layer", "channel", "neuron", "neuron"]),
    p=st.sampled_from([0.0, 0.5, 0.7, 0.97, 0.99]),
    m=st.sampled_from([0.0, 0.25, 0.99]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    backend=st.sampled_from(["native", "reference"]),
)
def test_a_block_moves_as_it_does_in_the_whole(
    shape: tuple[int, ...],
    cuts: list[float],
    cut_dims: set[int],
    granularity: str,
    p: float,
    m: float,
    dtype: torch.dtype,
    backend: str,
) -> None:
    student, teacher = torch.randn(shape).to(dtype), torch.randn(shape)
    rule = Rule(m, p, granularity, 3, 2**40 + 1)  # type: ignore[arg-type]
    where = tuple(
        part if dim in cut_dims else slice(0, size)
        for dim, (part, size) in enumerate(zip(block(shape, cuts), shape, strict=True))
    )
    shard = Shard(shape, tuple(part.start for part in where))
    expected = updated(student, teacher, None, rule, backend)[where]
    found = updated(student[where], teacher[where], shard, rule, backend)
    if shard.runs(found.shape) is None:  # three cuts: the reference serves, whose sums may round otherwise
        assert torch.equal(found != teacher[where], expected != teacher[where])
        torch.testing.assert_close(found, expected, rtol=1.2e-7, atol=5e-7)
    else:
        assert torch.equal(found, expected)


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize(("granularity", "p"), [("channel", 0.5), ("neuron", 0.5), ("neuron", 0.98)])
@pytest.mark.parametrize("where", [(slice(90, 200), slice(0, 257)), (slice(0, 300), slice(31, 77))])
def test_rows_and_columns_that_begin_anywhere_move_as_they_do_in_the_whole(
    where: tuple[slice, slice], granularity: str, p: float, backend: str
) -> None:
    student, teacher = torch.randn(300, 257), torch.randn(300, 257)
    rule = Rule(0.25, p, granularity, 3, 1)  # type: ignore[arg-type]
    shard = Shard((300, 257), (where[0].start, where[1].start))
    found = updated(student[where], teacher[where], shard, rule, backend)
    assert torch.equal(found, updated(student, teacher, None, rule, backend)[where])
    assert not torch.equal(found, teacher[where])


@pytest.mark.parametrize(
    ("shape", "local", "offset", "runs"),
    [
        ((8, 6), (3, 6), (2, 0), (18, 48, 12)),
        ((8, 6), (8, 2), (0, 4), (2, 6, 4)),
        ((8, 6), (3, 2), (2, 4), (2, 6, 16)),
        ((8, 6), (8, 6), (0, 0), (48, 48, 0)),
        ((4, 8, 6), (2, 3, 2), (0, 0, 0), None),
    ],
)
def test_runs_are_what_lies_together_in_the_block_and_in_the_whole(
    shape: tuple[int, ...], local: tuple[int, ...], offset: tuple[int, ...], runs: tuple[int, int, int] | None
) -> None:
    assert Shard(shape, offset).runs(torch.Size(local)) == runs
