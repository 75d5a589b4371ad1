"""Averages that were not kept are made from those that were, and say how far they are from the real ones."""

import copy
from functools import partial

import pytest
import torch
from torch import nn

from sts_core import (
    ConfigError,
    PairingError,
    Snapshot,
    TeacherBank,
    power_momentum,
    synthesize,
    temporal_moving_average,
)
from sts_core.schedules import power_exponent

LENGTHS = {"short": 0.05, "long": 0.10, "between": 0.07}
NUM_STEPS = 2_000


@pytest.fixture(scope="module")
def run() -> tuple[dict[str, nn.Module], list[Snapshot]]:
    """Teachers with power-function profiles of a student on a random walk, two of them with snapshots."""
    torch.manual_seed(0)
    student = nn.BatchNorm1d(50)
    bank = TeacherBank(student=student, configs=dict.fromkeys(LENGTHS, temporal_moving_average(0.0)), seed=0)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.01)
    bank.attach(
        optimizer,
        momentum={name: partial(power_momentum, length=length) for name, length in LENGTHS.items()},
    )
    snapshots = []
    for step in range(1, NUM_STEPS + 1):
        student.weight.grad = torch.randn(50) + 1
        optimizer.step()
        if step % 125 == 0:
            snapshots += [
                Snapshot(step=step, length=LENGTHS[name], weights=copy.deepcopy(bank.teachers[name].state_dict()))
                for name in ("short", "long")
            ]
    return bank.teachers, snapshots


def distance(weights: dict[str, torch.Tensor], teacher: nn.Module) -> float:
    return float((weights["weight"] - teacher.weight).abs().max())


def test_a_length_between_is_the_average_that_was_kept_beside(
    run: tuple[dict[str, nn.Module], list[Snapshot]],
) -> None:
    teachers, snapshots = run
    made = synthesize(snapshots, step=NUM_STEPS, length=LENGTHS["between"])
    apart = float((teachers["short"].weight - teachers["long"].weight).abs().max())
    assert made.error < 0.02
    assert sum(made.coefficients) == pytest.approx(1, abs=0.01)
    assert distance(made.weights, teachers["between"]) < 0.02 * apart
    assert made.weights["num_batches_tracked"].dtype == torch.int64


def test_a_kept_length_is_given_back_as_it_is(run: tuple[dict[str, nn.Module], list[Snapshot]]) -> None:
    teachers, snapshots = run
    made = synthesize(snapshots, step=NUM_STEPS, length=LENGTHS["long"])
    assert made.error < 1e-5
    assert distance(made.weights, teachers["long"]) < 1e-4


def test_the_error_tells_of_too_few_snapshots_and_of_lengths_far_from_all(
    run: tuple[dict[str, nn.Module], list[Snapshot]],
) -> None:
    _, snapshots = run
    error = synthesize(snapshots, step=NUM_STEPS, length=0.07).error
    assert synthesize(snapshots[-2:], step=NUM_STEPS, length=0.07).error > 2 * error
    assert synthesize(snapshots, step=NUM_STEPS, length=0.005).error > 0.5


def test_the_profile_has_the_width_that_was_asked_for() -> None:
    for length in (0.02, 0.1, 0.2):
        weights = torch.zeros(5_000, dtype=torch.float64)
        for step in range(5_000):
            m = power_momentum(step, length=length)
            weights.mul_(m)
            weights[step] += 1 - m
        place = torch.arange(1, 5_001) / 5_000
        mean = (weights * place).sum()
        assert float((weights * (place - mean).square()).sum().sqrt()) == pytest.approx(length, rel=0.01)
    assert power_exponent(0.10) == pytest.approx(6.94, abs=0.005)  # EDM2's two profiles
    assert power_exponent(0.05) == pytest.approx(16.97, abs=0.005)


def test_what_cannot_be_combined_is_refused(run: tuple[dict[str, nn.Module], list[Snapshot]]) -> None:
    _, snapshots = run
    with pytest.raises(
        ConfigError, match=r"length must be a fraction of the training above 0 and below 0\.288, got 0\.3"
    ):
        power_momentum(0, length=0.3)
    bank = TeacherBank(student=nn.Linear(1, 1), configs={"a": temporal_moving_average(0.9)}, seed=0)
    with pytest.raises(ConfigError, match="the bank's teachers are a, got 'b'"):
        bank.update({"b": 0.5})
    with pytest.raises(ConfigError, match="needs snapshots after at least one update, got 0 of them for step 5"):
        synthesize([], step=5, length=0.1)
    other = Snapshot(step=3, length=0.1, weights={"bias": torch.zeros(1)})
    with pytest.raises(PairingError, match="snapshots must be of one network, but number 1 has other tensors"):
        synthesize([snapshots[0], other], step=5, length=0.1)
