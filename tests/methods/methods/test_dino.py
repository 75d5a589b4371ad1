"""DINO: centring, sharpening, multi-crop and frozen prototypes."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sts_core import ConfigError, Network
from sts_methods import (
    Batch,
    DataConfig,
    Dino,
    DinoConfig,
    LocalRuntime,
    OptimizerConfig,
    TrainingConfig,
    build_method,
    fit,
)
from sts_methods.draws import uniforms
from sts_methods.methods.dino import teacher_temperature
from sts_methods.networks.backbones import build_backbone
from sts_methods.networks.batch_norm import CrossRankBatchNorm
from sts_methods.networks.drop_path import DROP_PATH_STREAM, DropPath, draws_of, dropping, use_drop_path


def small(**changes: object) -> DinoConfig:
    values = {"backbone": "test_vit", "hidden_dim": 16, "bottleneck_dim": 8, "num_prototypes": 12, **changes}
    return DinoConfig(**values)  # type: ignore[arg-type]


def batch(*, step: int = 0, sizes: tuple[int, ...] = (64, 64, 32, 32)) -> Batch:
    draw = torch.Generator().manual_seed(0)
    views = tuple(torch.randn(4, 3, size, size, generator=draw) for size in sizes)
    return Batch(views=views, indices=torch.arange(4), step=step)


def test_the_loss_is_the_cross_entropy_between_different_views_of_centred_sharpened_targets() -> None:
    fresh, data = Dino(small(), seed=0), batch()
    center = torch.linspace(-1.0, 1.0, 12)

    def scores(network: torch.nn.Module, image: torch.Tensor) -> torch.Tensor:
        embedding = F.normalize(network.head(network.backbone(image)), dim=1)  # type: ignore[operator]
        return embedding @ F.normalize(network.prototypes.weight, dim=1).T  # type: ignore[union-attr, arg-type]

    total = torch.zeros(())
    for g in range(2):
        target = ((scores(fresh.teacher, data.views[g]) - center) / 0.04).softmax(dim=1)
        for v in range(4):
            if v != g:
                log_probabilities = (scores(fresh.student, data.views[v]) / 0.1).log_softmax(dim=1)
                total = total - (target * log_probabilities).sum(dim=1).mean()
    method = Dino(small(), seed=0)
    method.center.copy_(center)
    torch.testing.assert_close(method(data).loss, total / 6)


def test_the_centre_is_a_moving_average_of_the_teachers_scores() -> None:
    method = Dino(small(), seed=0)
    images = torch.cat(batch().views[:2])
    scores = method.teacher.prototypes(method.teacher(images))
    method(batch())
    torch.testing.assert_close(method.center, 0.1 * scores.mean(dim=0))
    method(batch())
    torch.testing.assert_close(method.center, 0.19 * scores.mean(dim=0))


def test_the_teacher_sees_the_global_views_only_and_equal_sizes_go_together() -> None:
    method = Dino(small(), seed=0)
    seen: dict[str, list[tuple[int, int]]] = {"student": [], "teacher": []}
    networks: tuple[Network, ...] = ("student", "teacher")
    for name in networks:
        method.backbone(name).register_forward_pre_hook(
            lambda _, args, name=name: seen[name].append((len(args[0]), args[0].shape[-1]))
        )
    method(batch())
    assert seen == {"student": [(8, 64), (8, 32)], "teacher": [(8, 64)]}


def test_frozen_prototypes_have_no_gradient_and_the_rest_learns() -> None:
    method = Dino(small(freeze_prototypes_steps=2), seed=0)
    method(batch(step=1)).loss.backward()
    method.adjust_gradients_(1)
    assert {name for name, p in method.student.named_parameters() if p.grad is None} == {"prototypes.weight"}
    method(batch(step=2)).loss.backward()
    method.adjust_gradients_(2)
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in method.student.parameters())


def test_after_the_frozen_steps_adamw_begins_with_prototypes_that_have_not_decayed(tmp_path: Path) -> None:
    """Bias correction makes the first step of AdamW lr·sign(gradient), whatever the gradient's size."""
    config = TrainingConfig(
        method=small(backbone="wrn_10_1", stem="cifar", freeze_prototypes_steps=2),
        data=DataConfig(views="dino", image_size=8, num_local_crops=0),
        optimizer=OptimizerConfig(name="adamw", lr=0.01, scale_lr=False, weight_decay=0.5, schedule="constant"),
        global_batch_size=16,
        accumulation=2,
        steps=2,
    )

    def prototypes(steps: int) -> Tensor:
        result = fit(replace(config, steps=steps), LocalRuntime(tmp_path / str(steps), progress=False))
        return result.method.get_parameter("student.prototypes.weight").detach()

    start = build_method(config.method, seed=0).get_parameter("student.prototypes.weight").detach()
    assert torch.equal(prototypes(2), start)
    moved = prototypes(3) - start * (1 - 0.01 * 0.5)
    torch.testing.assert_close(moved.abs(), torch.full_like(moved, 0.01), rtol=1e-3, atol=1e-6)


def test_the_teachers_temperature_warms_up_linearly() -> None:
    config = small(warmup_teacher_temperature=0.04, teacher_temperature=0.07, warmup_teacher_steps=10)
    temperatures = [teacher_temperature(step, config) for step in (0, 5, 10, 99)]
    assert temperatures == pytest.approx([0.04, 0.055, 0.07, 0.07])


def test_a_convolutional_backbone_works_with_multi_crop() -> None:
    method = Dino(small(backbone="wrn_10_1", stem="cifar"), seed=0)
    result = method(batch(sizes=(16, 16, 8)))
    result.loss.backward()
    assert all(p.grad is not None for p in method.student.parameters())
    assert torch.isfinite(result.loss)


def test_the_head_has_batch_norm_on_request() -> None:
    plain = [type(layer) for layer in Dino(small(), seed=0).student.head.children()]
    normed = [type(layer) for layer in Dino(small(head_batch_norm=True), seed=0).student.head.children()]
    linear, gelu, norm = torch.nn.Linear, torch.nn.GELU, CrossRankBatchNorm
    assert plain == [linear, gelu, linear, gelu, linear]
    assert normed == [linear, norm, gelu, linear, norm, gelu, linear]


def test_a_centre_that_never_moves_is_refused() -> None:
    with pytest.raises(ConfigError, match="center_momentum"):
        small(center_momentum=1.0)


def test_paths_are_dropped_by_draws_of_their_own_that_no_batch_or_resume_changes() -> None:
    whole, layers = batch(step=7), use_drop_path(build_backbone("test_vit"), 0.5)
    draws = draws_of(whole, len(layers), seed=3).view(len(layers), 4, 4)  # [layers, views, images]
    half = Batch(views=tuple(view[2:] for view in whole.views), indices=whole.indices[2:], step=7)
    assert torch.equal(draws_of(half, len(layers), seed=3).view(len(layers), 4, 2), draws[:, :, 2:])
    expected = uniforms(seed=3, stream=DROP_PATH_STREAM + 1, epochs=7, indices=range(4), num=len(layers))
    assert draws[:, 1].T.double().numpy() == pytest.approx(expected, abs=1e-7)
    assert not torch.equal(draws_of(batch(step=8), len(layers), seed=3).view_as(draws), draws)


def test_a_dropped_branch_is_left_out_and_the_others_make_up_for_it() -> None:
    layer, x = DropPath(0.25), torch.ones(4, 3, 2)
    assert torch.equal(layer(x), x)
    with dropping([layer], torch.tensor([[0.1, 0.25, 0.9, 0.2]])):
        assert torch.equal(layer(x), x * torch.tensor([0.0, 4 / 3, 4 / 3, 0.0]).view(4, 1, 1))
    assert torch.equal(layer(x), x)


def test_dino_drops_paths_of_the_student_alone_and_deeper_ones_more_often() -> None:
    plain, method = Dino(small(), seed=0), Dino(small(drop_path=0.9), seed=0)
    rates = [layer.rate for layer in method._paths]
    assert rates[0] == 0.0
    assert rates[-1] == pytest.approx(0.9)
    assert rates == sorted(rates)
    assert not any(isinstance(module, DropPath) and module.draws is not None for module in method.modules())
    first, again = (method(batch()) for _ in range(2))
    assert not torch.equal(first.loss, plain(batch()).loss)
    method.center.zero_()
    assert torch.equal(Dino(small(drop_path=0.9), seed=0)(batch()).loss, first.loss)
    assert torch.equal(method.teacher.backbone(batch().views[0]), plain.teacher.backbone(batch().views[0]))
    assert plain.state_dict().keys() == method.state_dict().keys()
    assert again.loss.isfinite()


def test_networks_without_residual_blocks_drop_no_paths() -> None:
    with pytest.raises(ConfigError, match="drop_path needs one of timm's transformers"):
        Dino(small(backbone="test_resnet", drop_path=0.1), seed=0)
