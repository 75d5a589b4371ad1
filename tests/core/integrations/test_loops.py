"""timm, diffusers, torch's AveragedModel and lightly: their own code drives our teachers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from sts_core import ConfigError, PairingError, Smoother, StateError, make_teacher, spatial_temporal_smoothing
from sts_core.integrations.lightly import MomentumUpdate
from sts_core.integrations.parameter_lists import ParameterTeacher, multi_avg_fn
from sts_core.integrations.timm import ModelSmoother

CONFIG = spatial_temporal_smoothing(0.9, 0.5, granularity="channel")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 2))


def moved(student: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) / 10)


def expected(steps: int, *, by_position: bool = False) -> nn.Module:
    """The teacher that a Smoother keeps, by the parameters' names or, where a loop does not tell them, positions."""
    student = network()
    followed = nn.ParameterList(student.parameters()) if by_position else student
    teacher = make_teacher(followed)
    smoother = Smoother(student=followed, teacher=teacher, config=CONFIG, seed=3)
    for step in range(steps):
        moved(student, step)
        smoother.update()
    return teacher


def assert_same(a: Any, b: Any) -> None:
    pairs = list(zip(a, b, strict=True))
    assert pairs
    assert all(torch.equal(x, y) for x, y in pairs)


def test_fewer_parameters_than_at_the_beginning_are_refused() -> None:
    student = network()
    ema = ParameterTeacher(student.parameters(), CONFIG, seed=3)
    ema.step(student.parameters())
    with pytest.raises(PairingError, match="must be the 6 of the beginning, in their order, got 5"):
        ema.step(list(student.parameters())[:-1])
    assert ema.optimization_step == 1


def test_weights_are_lent_and_given_back_as_diffusers_does(tmp_path: Path) -> None:
    student = network().bfloat16()
    ema = ParameterTeacher(student.parameters(), CONFIG, seed=3)
    moved(student, 0)
    ema.step(student.parameters())
    before = [parameter.detach().clone() for parameter in student.parameters()]
    ema.store(student.parameters())
    ema.copy_to(student.parameters())
    assert_same((p.detach() for p in student.parameters()), (p.bfloat16() for p in ema.shadow_params))
    ema.restore(student.parameters())
    assert_same((p.detach() for p in student.parameters()), before)
    with pytest.raises(StateError, match="restore\\(\\) gives back what store\\(\\) kept, and it has kept nothing"):
        ema.restore(student.parameters())
    with pytest.raises(ConfigError, match="the teacher must stay float32"):
        ema.to(dtype=torch.bfloat16)
    with pytest.raises(ConfigError, match="pass model_cls and model_config"):
        ema.save_pretrained(tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_diffusers_loads_what_the_teacher_saved(tmp_path: Path) -> None:
    diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
    small = {"sample_size": 8, "block_out_channels": (8, 8), "norm_num_groups": 2, "layers_per_block": 1}
    blocks = {"down_block_types": ("DownBlock2D",) * 2, "up_block_types": ("UpBlock2D",) * 2}
    unet = diffusers.UNet2DModel(**small, **blocks)
    ema = ParameterTeacher(unet.parameters(), CONFIG, seed=3, model_cls=diffusers.UNet2DModel, model_config=unet.config)
    moved(unet, 0)
    ema.step(unet.parameters())
    ema.save_pretrained(tmp_path)
    loaded = diffusers.UNet2DModel.from_pretrained(tmp_path)
    assert_same((p.detach() for p in loaded.parameters()), ema.shadow_params)
    theirs, ours = diffusers.training_utils.EMAModel, set(dir(ema))
    wanted = {"step", "copy_to", "store", "restore", "to", "state_dict", "load_state_dict", "save_pretrained"}
    assert wanted <= set(dir(theirs)) & ours


@pytest.mark.parametrize("make", [multi_avg_fn, lambda config: ParameterTeacher([], config)])
def test_modules_cannot_be_told_from_a_list(make: Any) -> None:
    with pytest.raises(ConfigError, match="granularity 'module' needs the names of parameters"):
        make(spatial_temporal_smoothing(0.9, 0.5, granularity="module"))


def test_lightlys_function_is_replaced_pair_by_pair_and_resumes() -> None:
    theirs = pytest.importorskip("lightly.models.utils", reason="lightly is not installed").update_momentum
    student, head = network(), nn.Linear(4, 2)
    teacher, teacher_head = make_teacher(student), make_teacher(head)
    update = MomentumUpdate(spatial_temporal_smoothing(0.9, 0.5, granularity="channel", buffers="keep"), seed=3)
    for step in range(4):
        moved(student, step)
        if step == 2:
            state, update = update.state_dict(), MomentumUpdate(update.config, seed=3)
            update.load_state_dict(state)
        update(student, teacher)
        update(head, teacher_head, 0.5)
    assert_same(teacher.parameters(), expected(4).parameters())
    plain, mine = make_teacher(network()), make_teacher(network())
    moved(student, 9)
    theirs(student, plain, m=0.7)
    MomentumUpdate(spatial_temporal_smoothing(0.0, 0.0, buffers="keep"))(student, mine, 0.7)
    for a, b in zip(plain.parameters(), mine.parameters(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("use_buffers", [True, False])
def test_averaged_model_with_statistics_and_counters(use_buffers: bool) -> None:
    student = network()
    averaged = AveragedModel(student, multi_avg_fn=multi_avg_fn(CONFIG, seed=3), use_buffers=use_buffers)
    means = []
    for step in range(3):
        student(torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(step)))
        averaged.update_parameters(student)
        means.append(student[1].running_mean.clone())
    got = averaged.module[1]
    assert int(got.num_batches_tracked) == 3
    assert torch.equal(got.running_mean, means[-1]) is not use_buffers
    lowest, highest = torch.stack(means).amin(0), torch.stack(means).amax(0)
    assert ((got.running_mean >= lowest) & (got.running_mean <= highest)).all()


def test_the_average_of_a_bfloat16_model_must_be_float32() -> None:
    student = network().bfloat16()
    averaged = AveragedModel(student, multi_avg_fn=multi_avg_fn(CONFIG, seed=3))
    averaged.update_parameters(student)
    with pytest.raises(PairingError, match=r"must be float32, got torch.bfloat16, .*: call AveragedModel's float"):
        averaged.update_parameters(student)
    assert averaged.n_averaged == 1
    averaged.float().update_parameters(student)
    assert averaged.n_averaged == 2


def test_timms_teacher_refuses_another_model() -> None:
    student = network()
    model_ema = ModelSmoother(student, CONFIG, seed=3)
    with pytest.raises(PairingError, match="has one student, but this one is given another than it was made of"):
        model_ema.update(network(), step=1)
    model_ema.update(torch.compile(student, backend="eager"), step=1)
