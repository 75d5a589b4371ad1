"""A bfloat16 teacher moves as its float32 twin does on average, the same in every block and after a resume."""

import copy
from itertools import combinations

import pytest
import torch
from torch import nn

from sts_core import PairingError, Smoother, SmoothingConfig, make_teacher, temporal_moving_average
from sts_core.kernels.choice import bind
from sts_core.kernels.interface import Pair, Rule
from sts_core.sharded.blocks import Shard
from tests.core.test_resume_and_ranks import assert_same, bits, train_step

STS = SmoothingConfig(momentum=0.9, preserve_probability=0.5, granularity="neuron")


def rounded(
    student: torch.Tensor, teacher: torch.Tensor, rule: Rule, shard: Shard | None = None, name: str = "w"
) -> torch.Tensor:
    pair = Pair(name, student.contiguous(), (teacher.clone().contiguous(),), shard)
    for kernel in bind([pair]):
        kernel.update([rule])
    return pair.teachers[0]


def test_steps_below_the_precision_are_made_on_average() -> None:
    """At m = 0.999 rounding to nearest would leave every weight where it is for ever."""
    student, teacher = torch.full((100_000,), 1.1), torch.ones(100_000, dtype=torch.bfloat16)
    for step in range(100):
        teacher = rounded(student, teacher, Rule(0.999, 0.0, "layer", step, 3))
    expected = 1.1 - 0.1 * 0.999**100
    spread = float(teacher.float().std()) / 100_000**0.5
    assert abs(float(teacher.float().mean()) - expected) < 5 * spread
    assert torch.tensor(1.0001).bfloat16() == 1.0


@pytest.mark.parametrize("value", [1.001, -1.001, 3e-39, -7.77])
def test_one_rounding_is_unbiased_for_either_sign(value: float) -> None:
    student = torch.full((200_000,), value)
    result = rounded(student, torch.zeros(200_000, dtype=torch.bfloat16), Rule(0.0, 0.0, "layer", 0, 9)).float()
    assert len(result.unique()) == 2
    width = float(result.max() - result.min())
    assert abs(float(result.double().mean()) - float(student[0])) < 5 * width / 2 / 200_000**0.5


def test_weights_that_stay_and_values_that_are_not_finite_are_left_alone() -> None:
    teacher = torch.randn(1000).bfloat16()
    payload = torch.tensor([0x7FFFFFFF], dtype=torch.int32).view(torch.float32)  # a NaN that a carry would make -0
    strange = torch.cat([payload, torch.tensor([float("inf"), -float("inf"), 1.0])])
    assert torch.equal(rounded(torch.randn(1000), teacher, Rule(0.9, 1.0, "layer", 0, 0)), teacher)
    result = rounded(strange, torch.zeros(4, dtype=torch.bfloat16), Rule(0.0, 0.0, "layer", 0, 0))
    torch.testing.assert_close(result.float(), strange, rtol=0, atol=0, equal_nan=True)


def test_every_tensor_step_and_seed_is_rounded_by_draws_of_its_own() -> None:
    student, zeros = torch.full((1000,), 1.001), torch.zeros(1000, dtype=torch.bfloat16)
    keys = [("a", 0, 1), ("b", 0, 1), ("a", 1, 1), ("a", 0, 2)]
    found = [rounded(student, zeros, Rule(0.0, 0.0, "layer", step, seed), name=name) for name, step, seed in keys]
    assert torch.equal(found[0], rounded(student, zeros, Rule(0.0, 0.0, "layer", 0, 1), name="a"))
    up = [value > 1 for value in found]
    for one, other in combinations(up, 2):  # each goes up in 13 % of the cases, both in 2 % if they are independent
        assert 0 < int((one & other).sum()) < 50


@pytest.mark.parametrize("where", [(slice(90, 200), slice(0, 257)), (slice(0, 300), slice(31, 77))])
def test_a_block_is_rounded_as_it_is_in_the_whole(where: tuple[slice, slice]) -> None:
    student, teacher = torch.randn(300, 257), torch.randn(300, 257).bfloat16()
    rule = Rule(0.9, 0.5, "neuron", 3, 1)
    shard = Shard((300, 257), (where[0].start, where[1].start))
    assert torch.equal(rounded(student[where], teacher[where], rule, shard), rounded(student, teacher, rule)[where])


def test_a_resumed_teacher_is_rounded_as_an_uninterrupted_one(student: nn.Module) -> None:
    def run(stop: int | None) -> list[torch.Tensor]:
        learner = copy.deepcopy(student)
        teacher = make_teacher(learner).bfloat16()
        smoother = Smoother(student=learner, teacher=teacher, config=STS, seed=5, stochastic_rounding=True)
        for step in range(4):
            if step == stop:
                state = smoother.state_dict()
                smoother = Smoother(student=learner, teacher=teacher, config=STS, seed=0, stochastic_rounding=True)
                smoother.load_state_dict(state)
            train_step(learner, step)
            smoother.update()
        with smoother.swapped():
            assert torch.equal(learner.head.weight, teacher.head.weight.float())
        return bits(teacher)

    assert_same(run(2), run(None))


def test_without_the_choice_the_error_explains_it(student: nn.Module) -> None:
    teacher = make_teacher(student).bfloat16()
    with pytest.raises(PairingError, match=r"bfloat16, in which small steps .*, or round a bfloat16 teacher by chance"):
        Smoother(student=student, teacher=teacher, config=temporal_moving_average(0.9), seed=0)
    half = make_teacher(student).half()
    with pytest.raises(PairingError, match="is float16, in which"):
        Smoother(student=student, teacher=half, config=STS, seed=0, stochastic_rounding=True)
