"""Schedules are those of the libraries that people come from."""

import pytest
import torch
from torch import nn

from sts_core import (
    ConfigError,
    Smoother,
    cosine_momentum,
    half_life_momentum,
    interval_momentum,
    make_teacher,
    temporal_moving_average,
    warmup_momentum,
)

STEPS = [0, 1, 2, 7, 100, 101, 5_000, 10**6]


@pytest.mark.parametrize(("start", "power", "minimum"), [(0, 2 / 3, 0.0), (100, 0.75, 0.5)])
def test_the_warm_up_is_timms(start: int, power: float, minimum: float) -> None:
    timm = pytest.importorskip("timm.utils", reason="timm is not installed")
    options = {"update_after_step": start, "warmup_power": power, "min_decay": minimum}
    theirs = timm.ModelEmaV3(nn.Linear(1, 1), decay=0.999, use_warmup=True, **options)
    for step in STEPS:  # timm's train script counts the update itself
        mine = warmup_momentum(step, momentum=0.999, start=start, power=power, minimum=minimum)
        assert mine == theirs.get_decay(step + 1)


def ema_pytorch_decays(num_steps: int, *, after: int, every: int, beta: float) -> list[float]:
    """`EMA.update`, read from its source: 0 copies, None leaves the average alone (here: 1)."""
    decays = []
    for step in range(num_steps):
        epoch = max(step + 1 - after - 1, 0)
        value = min(max(1 - (1 + epoch / 1.0) ** -(2 / 3), 0.0), beta) if epoch else 0.0
        decays.append(1.0 if step % every else 0.0 if step <= after else value)
    return decays


@pytest.mark.parametrize(("after", "every"), [(0, 1), (20, 10), (25, 4)])
def test_start_interval_and_warm_up_together_are_ema_pytorchs(after: int, every: int) -> None:
    mine = [
        interval_momentum(step, momentum=warmup_momentum(step, momentum=0.95, start=after), interval=every, start=after)
        for step in range(200)
    ]
    assert mine == ema_pytorch_decays(200, after=after, every=every, beta=0.95)
    assert max(value for value in mine if value < 1) == 0.95


@pytest.mark.parametrize(("after", "every"), [(0, 1), (20, 10)])
def test_a_teacher_under_both_is_ema_pytorchs(after: int, every: int) -> None:
    theirs = pytest.importorskip("ema_pytorch", reason="ema-pytorch is not installed")
    student = nn.Linear(3, 3)
    average = theirs.EMA(student, beta=0.95, update_after_step=after, update_every=every)
    smoother = Smoother(student=student, teacher=make_teacher(student), config=temporal_moving_average(0.9), seed=0)
    for step in range(60):
        with torch.no_grad():
            student.weight.add_(torch.randn(3, 3, generator=torch.Generator().manual_seed(step)))
        average.update()
        m = warmup_momentum(step, momentum=0.95, start=after)
        smoother.update(momentum=interval_momentum(step, momentum=m, interval=every, start=after))
        torch.testing.assert_close(smoother.teacher.weight, average.ema_model.weight, rtol=1e-5, atol=1e-5)


def test_until_the_start_the_teacher_is_the_student() -> None:
    assert [interval_momentum(step, momentum=0.9, interval=2, start=4) for step in range(8)] == [
        0,
        1,
        0,
        1,
        0,
        1,
        0.9,
        1,
    ]


def test_after_a_half_life_the_first_weights_count_half() -> None:
    product = 1.0
    for step in range(50):
        product *= half_life_momentum(step, half_life=50)
    assert product == pytest.approx(0.5)
    assert half_life_momentum(0, half_life=50, ramp_up=0.05) == 0.0
    assert half_life_momentum(100, half_life=50, ramp_up=0.05) == pytest.approx(0.5 ** (1 / 5))
    assert half_life_momentum(10_000, half_life=50, ramp_up=0.05) == half_life_momentum(0, half_life=50)


def test_a_cosine_ends_where_it_is_told_to_in_either_direction() -> None:
    assert [cosine_momentum(step, total_steps=10, start=0.9, end=0.5) for step in (0, 10, 11)] == [0.9, 0.5, 0.5]
    assert cosine_momentum(5, total_steps=10, start=0.9, end=0.5) == pytest.approx(0.7)


def test_between_intervals_the_teacher_stays_even_where_the_student_is_not_finite() -> None:
    student = nn.Linear(3, 3)
    teacher = make_teacher(student)
    smoother = Smoother(student=student, teacher=teacher, config=temporal_moving_average(0.9), seed=0)
    before = teacher.weight.clone()
    with torch.no_grad():
        student.weight.fill_(float("nan"))
    smoother.update(momentum=interval_momentum(3, momentum=0.9, interval=2))
    assert torch.equal(teacher.weight, before)
    assert smoother.applied is not None
    assert (smoother.applied.momentum, smoother.step) == (1.0, 1)


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"gamma and power must be positive, got 0 and 0\.5"):
        warmup_momentum(0, momentum=0.9, gamma=0, power=0.5)
    with pytest.raises(ConfigError, match="half_life and ramp_up must not be negative, got -1 and None"):
        half_life_momentum(0, half_life=-1)
    with pytest.raises(ConfigError, match="interval must be at least 1, got 0"):
        interval_momentum(0, momentum=0.9, interval=0)
    for schedule in (warmup_momentum, interval_momentum):
        with pytest.raises(ConfigError, match="step must not be negative, got -1"):
            schedule(-1, momentum=0.9)
