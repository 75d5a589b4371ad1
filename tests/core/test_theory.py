"""An STS teacher is TMA(m_eff) plus noise: by enumerating all masks, and with the draws of the real kernels."""

import itertools
import math

import pytest
import torch
from torch import nn

from sts_core import Smoother, SmoothingConfig, TeacherBank, make_teacher, next_noise_variance, noise_std

STUDENT = (1.0, -0.5, 2.0, 2.5, 0.1, 3.0)
SETTINGS = [(0.99, 0.7), (0.9, 0.5), (0.0, 0.9), (0.5, 0.0), (0.3, 0.2)]


def moments_over_all_masks(m: float, p: float) -> tuple[list[float], list[float]]:
    """Mean and variance of a unit after each update, over every sequence of masks with its probability."""
    means, variances = [], []
    for length in range(1, len(STUDENT) + 1):
        first = second = 0.0
        for masks in itertools.product((True, False), repeat=length):
            teacher, probability = 0.0, 1.0
            for updated, student in zip(masks, STUDENT, strict=False):
                probability *= 1.0 - p if updated else p
                teacher = m * teacher + (1.0 - m) * student if updated else teacher
            first += probability * teacher
            second += probability * teacher**2
        means.append(first)
        variances.append(second - first**2)
    return means, variances


@pytest.mark.parametrize(("m", "p"), SETTINGS)
def test_the_mean_over_all_masks_is_the_matched_moving_average_and_the_variance_obeys_the_recursion(
    m: float, p: float
) -> None:
    config = SmoothingConfig(momentum=m, preserve_probability=p)
    means, variances = moments_over_all_masks(m, p)
    mean = variance = 0.0
    for step, student in enumerate(STUDENT):
        variance = next_noise_variance(variance, (student - mean) ** 2, config)
        mean += (1.0 - config.effective_momentum) * (student - mean)
        assert mean == pytest.approx(means[step], rel=1e-12, abs=1e-12)
        assert variance == pytest.approx(variances[step], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("m", "p", "published"), [(0.99, 0.7, 0.0593), (0.999, 0.5, 0.0158), (0.0, 0.9, 0.9487)])
def test_the_noise_settles_at_its_share_of_the_distance(m: float, p: float, published: float) -> None:
    config = SmoothingConfig(momentum=m, preserve_probability=p)
    mean = variance = distance = 0.0
    for step in range(20_000):
        distance = step * 1e-3 - mean
        variance = next_noise_variance(variance, distance**2, config)
        mean += (1.0 - config.effective_momentum) * distance
    assert math.sqrt(variance) / distance == pytest.approx(noise_std(config), rel=1e-3)
    assert noise_std(config) == pytest.approx(published, abs=1e-4)


def test_without_masks_and_without_updates_there_is_no_noise() -> None:
    with pytest.warns(UserWarning, match="freezes"):
        frozen = SmoothingConfig(momentum=0.9, preserve_probability=1.0)
    for config in (SmoothingConfig(momentum=0.9, preserve_probability=0.0), frozen):
        assert noise_std(config) == 0.0
        assert next_noise_variance(0.0, 1.0, config) == 0.0


def test_a_scheduled_momentum_takes_the_place_of_the_configs() -> None:
    asked = SmoothingConfig(momentum=0.2, preserve_probability=0.4)
    config = SmoothingConfig(momentum=0.9, preserve_probability=0.4)
    assert next_noise_variance(0.3, 2.0, config, momentum=0.2) == next_noise_variance(0.3, 2.0, asked)


@pytest.mark.slow
@pytest.mark.parametrize("granularity", ["neuron", "channel", "layer", "module"])
def test_the_kernels_draws_have_the_predicted_mean_and_variance(granularity: str) -> None:
    """4,000 units that follow one student: their scatter is the noise, around the moving average of a control."""
    config = SmoothingConfig(momentum=0.9, preserve_probability=0.7, granularity=granularity)  # type: ignore[arg-type]
    units = 4000
    student = nn.Linear(1, units, bias=False)
    if granularity in ("layer", "module"):
        student = nn.Sequential(*(nn.Linear(1, 1, bias=False) for _ in range(units)))
    with torch.no_grad():
        for weight in student.parameters():
            weight.zero_()
    teacher = make_teacher(student)
    smoother = Smoother(student=student, teacher=teacher, config=config, seed=3)
    mean = variance = 0.0
    for step in range(60):
        value = math.sin(step / 7) + step / 20
        with torch.no_grad():
            for weight in student.parameters():
                weight.fill_(value)
        variance = next_noise_variance(variance, (value - mean) ** 2, config)
        mean += (1.0 - config.effective_momentum) * (value - mean)
        smoother.update()
    found = torch.cat([weight.flatten() for weight in teacher.parameters()]).double()
    assert float(found.mean()) == pytest.approx(mean, abs=5 * math.sqrt(variance / units))
    assert float(found.var()) == pytest.approx(variance, rel=5 * math.sqrt(2 / units))


def test_granularity_changes_which_weights_share_noise_and_not_its_size() -> None:
    """Many seeds of a small teacher: the same mean squared noise for all granularities, within its own error."""
    config = {
        granularity: SmoothingConfig(momentum=0.5, preserve_probability=0.6, granularity=granularity)  # type: ignore[arg-type]
        for granularity in ("layer", "channel", "neuron")
    }
    control = config["layer"].matched_moving_average()
    squared: dict[str, list[float]] = {granularity: [] for granularity in config}
    for seed in range(150):
        student = nn.Linear(6, 5)
        with torch.no_grad():
            for weight in student.parameters():
                weight.zero_()
        bank = TeacherBank(student=student, configs={**config, "control": control}, seed=seed)
        for step in range(1, 9):
            with torch.no_grad():
                for weight in student.parameters():
                    weight.fill_(float(step))
            bank.update()
        for granularity in config:
            pairs = zip(bank.teachers[granularity].parameters(), bank.teachers["control"].parameters(), strict=True)
            squared[granularity].append(sum(float((a - b).square().sum()) for a, b in pairs) / 35)
    means = {name: sum(values) / len(values) for name, values in squared.items()}
    spread = {name: torch.tensor(values).std().item() for name, values in squared.items()}
    for name in ("channel", "neuron"):
        error = math.hypot(spread[name], spread["layer"]) / math.sqrt(150)
        assert abs(means[name] - means["layer"]) < 4 * error
    assert spread["neuron"] < 0.5 * spread["layer"]
