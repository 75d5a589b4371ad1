"""The smoothing figure's quantities, fragments' ages, momentum schedules, config values and the public names."""

import math
import pickle
from inspect import isfunction
from types import ModuleType

import pytest
import torch
from torch import nn

import sts_core
from sts_core import (
    CheckpointError,
    Smoother,
    SmoothingConfig,
    constant_momentum,
    cosine_momentum,
    effective_momentum,
    fragment_age,
    make_teacher,
    no_smoothing,
    output_drift,
    parameter_drift,
    spatial_ensemble,
    spatial_temporal_smoothing,
    temporal_moving_average,
)
from tests.core.networks import moved


def test_parameter_drift_is_the_mean_squared_difference(student: nn.Module) -> None:
    other = moved(student)
    pairs = list(zip(student.parameters(), other.parameters(), strict=True))
    total = sum(float((a - b).detach().double().square().sum()) for a, b in pairs)
    assert parameter_drift(student, other) == pytest.approx(total / sum(a.numel() for a, _ in pairs))
    assert parameter_drift(student, make_teacher(student)) == 0.0


def test_output_drift_is_measured_in_evaluation_mode_and_leaves_modes_alone() -> None:
    a = nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5))
    b = nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5))
    b[1].eval()
    batch = torch.randn(3, 5)
    expected = float((a[0](batch) - b[0](batch)).detach().square().mean())
    assert output_drift(a, b, batch) == pytest.approx(expected, rel=1e-5)
    assert [m.training for m in (a, a[1], b, b[1])] == [True, True, True, False]


@pytest.mark.parametrize("granularity", ["layer", "module", "channel", "neuron"])
@pytest.mark.parametrize("p", [0.0, 0.6, 0.98])
def test_fragment_age_counts_updates_since_a_unit_moved(student: nn.Module, granularity: str, p: float) -> None:
    teacher = make_teacher(student)
    config = spatial_ensemble(p, granularity=granularity)
    smoother = Smoother(student=student, teacher=teacher, config=config, seed=6)
    marks = {name: torch.zeros(tensor.shape) for name, tensor in teacher.named_parameters()}
    for step in range(1, 6):  # the student's weights carry the number of the step
        with torch.no_grad():
            for parameter in student.parameters():
                parameter.fill_(10.0 + step)
        smoother.update()
        for name, tensor in teacher.named_parameters():
            marks[name] = torch.where(tensor == 10.0 + step, step, marks[name])
    for name, age in fragment_age(teacher, config, seed=6, step=5).items():
        if marks[name].numel():
            shape = age.shape + (1,) * (marks[name].dim() - age.dim())
            assert torch.equal(5 - marks[name].long(), age.view(shape).expand(marks[name].shape)), name


def test_fragment_age_within_a_horizon_is_cut_off(student: nn.Module) -> None:
    config = spatial_ensemble(0.9, granularity="channel")
    full = fragment_age(student, config, seed=1, step=50)["head.weight"]
    short = fragment_age(student, config, seed=1, step=50, horizon=4)["head.weight"]
    assert torch.equal(short, full.clamp(max=4))
    assert int(full.max()) > 4


def test_cosine_momentum_is_byols_schedule() -> None:
    for step in (0, 1, 37, 100):
        expected = 1 - (1 - 0.99) * (1 + math.cos(math.pi * step / 100)) / 2
        assert cosine_momentum(step, total_steps=100, start=0.99) == pytest.approx(expected, abs=1e-15)
    assert cosine_momentum(250, total_steps=100, start=0.99) == 1.0
    assert cosine_momentum(0, total_steps=100, start=0.99) == 0.99


def test_constant_momentum_is_constant() -> None:
    assert {constant_momentum(step, momentum=0.999) for step in range(5)} == {0.999}


def test_named_forms_are_corners_of_one_rule() -> None:
    assert no_smoothing() == SmoothingConfig(momentum=0, preserve_probability=0)
    assert temporal_moving_average(0.9) == SmoothingConfig(momentum=0.9, preserve_probability=0)
    assert spatial_ensemble(0.9) == SmoothingConfig(momentum=0, preserve_probability=0.9)
    assert spatial_temporal_smoothing(0.9, 0.7).granularity == "layer"


@pytest.mark.parametrize(("m", "p", "expected"), [(0.99, 0.7, 0.997), (0.9, 0.99, 0.999), (0.0, 0.999, 0.999)])
def test_effective_momentum_and_its_control(m: float, p: float, expected: float) -> None:
    config = spatial_temporal_smoothing(m, p, granularity="neuron", buffers="keep")
    assert config.effective_momentum == pytest.approx(expected, abs=1e-12)
    control = config.matched_moving_average()
    assert control.preserve_probability == 0.0
    assert control.momentum == config.effective_momentum
    assert control.buffers == "keep"


def test_expected_pull_equals_that_of_the_control(student: nn.Module) -> None:
    """Over many units the mean step of STS is that of TMA(m_eff)."""
    config = spatial_temporal_smoothing(0.8, 0.6, granularity="neuron")
    teacher = make_teacher(student)
    with torch.no_grad():
        student.head.weight.copy_(teacher.head.weight + 1.0)
    Smoother(student=student, teacher=teacher, config=config, seed=0).update()
    pull = 1 - float((student.head.weight - teacher.head.weight).detach().mean())
    sigma = 0.2 * math.sqrt(0.6 * 0.4 / student.head.weight.numel())
    assert abs(pull - (1 - config.effective_momentum)) < 5 * sigma


def test_equal_effective_momenta_are_equal_numbers() -> None:
    pairs = [(0.9, 0.7), (0.7, 0.9), (0.97, 0.0), (0.0, 0.97), (0.85, 0.8), (0.4, 0.95)]
    assert {effective_momentum(m, p) for m, p in pairs} == {0.97}
    assert {SmoothingConfig(momentum=m, preserve_probability=p).matched_moving_average() for m, p in pairs} == {
        SmoothingConfig(momentum=0.97, preserve_probability=0.0)
    }


def test_public_names_are_these() -> None:
    assert sts_core.__all__ == sorted(sts_core.__all__)
    for name in sts_core.__all__:
        assert hasattr(sts_core, name)
    assert {"Smoother", "SmoothingConfig", "TeacherBank", "make_teacher", "fragment_age"} <= set(sts_core.__all__)


@pytest.mark.parametrize("module", [sts_core.distributed, sts_core.fields, sts_core.files])
def test_modules_that_other_packages_use_list_their_public_functions(module: ModuleType) -> None:
    functions = [f for f in vars(module).values() if isfunction(f) and f.__module__ == module.__name__]
    assert module.__all__ == sorted(f.__name__ for f in functions if not f.__name__.startswith("_"))


def test_a_checkpoint_error_is_caught_as_either_builtin_and_survives_pickling() -> None:
    for builtin in (OSError, ValueError):
        with pytest.raises(builtin, match="torn"):
            raise pickle.loads(pickle.dumps(CheckpointError("torn")))  # noqa: S301
