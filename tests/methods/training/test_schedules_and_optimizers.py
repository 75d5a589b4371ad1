"""Learning rates as functions of the step, LARS against a slow reference, and who is exempt from decay."""

import math

import pytest
import torch
from torch import nn

from sts_core.errors import ConfigError
from sts_methods.training.learning_rate import cosine, cosine_7_16, learning_rate_factor, linear_warmup, step_decay
from sts_methods.training.optimizers import (
    Lars,
    OptimizerConfig,
    build_optimizer,
    clip_gradients_,
    learning_rate,
    parameter_groups,
    set_learning_rate_,
    set_weight_decay_,
    weight_decay,
)


def test_cosine_falls_from_one_to_zero_and_is_half_way_in_the_middle() -> None:
    assert cosine(0, 100) == 1.0
    assert cosine(50, 100) == pytest.approx(0.5)
    assert cosine(100, 100) == pytest.approx(0.0)


def test_the_fixmatch_cosine_ends_at_cos_of_seven_sixteenths_pi() -> None:
    assert cosine_7_16(0, 1 << 20) == 1.0
    assert cosine_7_16(1 << 20, 1 << 20) == pytest.approx(math.cos(7 * math.pi / 16))
    assert cosine_7_16(1 << 19, 1 << 20) == pytest.approx(math.cos(7 * math.pi / 32))


def test_warm_up_is_linear_and_the_cosine_starts_where_it_ends() -> None:
    def factor(k: int) -> float:
        return learning_rate_factor("cosine", k, total_steps=110, warmup_steps=10, warmup_start=0.1)

    assert [factor(0), factor(5), factor(10)] == pytest.approx([0.1, 0.55, 1.0])
    assert factor(60) == pytest.approx(0.5)
    assert linear_warmup(3, 0) == 1.0


def test_moco_moves_its_cosine_once_per_epoch() -> None:
    rates = [learning_rate_factor("cosine", k, total_steps=200 * 7, steps_per_epoch=7) for k in range(21)]
    expected = [0.5 * (1 + math.cos(math.pi * epoch / 200)) for epoch in (0, 1, 2)]  # main_moco.py
    assert rates == pytest.approx([e for e in expected for _ in range(7)])


def test_the_step_schedule_decays_at_each_milestone() -> None:
    assert [step_decay(k, [60, 80], factor=0.1) for k in (0, 59, 60, 79, 80)] == pytest.approx([1, 1, 0.1, 0.1, 0.01])
    config = OptimizerConfig(lr=30.0, scale_lr=False, schedule="step", milestones=(60, 80))  # MoCo's lincls
    rates = [
        learning_rate(config, 5 * e, total_steps=500, steps_per_epoch=5, global_batch_size=256) for e in (59, 60, 99)
    ]
    assert rates == pytest.approx([30.0, 3.0, 0.3])


def test_the_learning_rate_scales_with_the_global_batch_only_when_asked() -> None:
    def rate(**changes: object) -> float:
        config = OptimizerConfig(lr=0.05, schedule="constant", **changes)  # type: ignore[arg-type]
        return learning_rate(config, 3, total_steps=10, steps_per_epoch=5, global_batch_size=1024)

    assert rate() == pytest.approx(0.2)
    assert rate(scale_lr=False) == pytest.approx(0.05)


def test_norms_and_biases_are_exempt_only_when_excluded_and_tied_weights_count_once() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 4), nn.LayerNorm(4))
    network.append(network[2])
    network[0].requires_grad_(False)
    groups = parameter_groups(network, OptimizerConfig(weight_decay=0.1, exclude_norm_and_bias=True))
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    assert [id(p) for p in groups[0]["params"]] == [id(network[2].weight)]
    assert len(groups[1]["params"]) == 5
    assert len(parameter_groups(network, OptimizerConfig())) == 1


def _lars_by_hand(
    theta: list[float], gradients: list[list[float]], *, lr: float, decay: float, exempt: bool
) -> list[float]:
    """One tensor, number by number, from the formula in the docstring of Lars."""
    velocity = [0.0] * len(theta)
    for gradient in gradients:
        g = [a + (0.0 if exempt else decay) * t for a, t in zip(gradient, theta, strict=True)]
        norms = math.hypot(*theta), math.hypot(*g)
        trust = 1.0 if exempt or 0.0 in norms else 0.001 * norms[0] / norms[1]
        velocity = [0.9 * v + trust * a for v, a in zip(velocity, g, strict=True)]
        theta = [t - lr * v for t, v in zip(theta, velocity, strict=True)]
    return theta


@pytest.mark.parametrize("exempt", [False, True])
@pytest.mark.parametrize("start", [[1.0, -2.0, 0.5], [0.0, 0.0, 0.0]])
def test_lars_equals_the_formula_worked_by_hand(exempt: bool, start: list[float]) -> None:
    weight = nn.Parameter(torch.tensor(start, dtype=torch.float64))
    groups = [{"params": [weight], "weight_decay": 0.0 if exempt else 0.01, "exempt": exempt}]
    optimizer = Lars(groups, lr=0.3, momentum=0.9, trust_coefficient=0.001)
    gradients = [[0.1, 0.2, -0.3], [0.0, -0.5, 0.25], [1.0, 1.0, 1.0]]
    for gradient in gradients:
        weight.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
    expected = _lars_by_hand(start, gradients, lr=0.3, decay=0.01, exempt=exempt)
    assert weight.tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_equals_the_textbook_update(nesterov: bool) -> None:
    weight = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    holder = nn.Module()
    holder.weight = weight
    optimizer = build_optimizer(holder, OptimizerConfig(weight_decay=0.1, nesterov=nesterov))
    theta, velocity = torch.tensor([1.0, -2.0], dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for k in range(4):
        set_learning_rate_(optimizer, 0.1 / (k + 1))
        gradient = torch.tensor([0.5, k], dtype=torch.float64)
        weight.grad = gradient.clone()
        optimizer.step()
        decayed = gradient + 0.1 * theta
        velocity = 0.9 * velocity + decayed
        theta = theta - 0.1 / (k + 1) * (decayed + 0.9 * velocity if nesterov else velocity)
    torch.testing.assert_close(weight.detach(), theta)


@pytest.mark.parametrize("name", ["sgd", "lars", "adamw"])
def test_an_optimizer_saved_half_way_resumes_bit_for_bit(name: str) -> None:
    def trained(split_at: int | None) -> torch.Tensor:
        network = nn.Linear(3, 2)
        with torch.no_grad():
            network.weight.copy_(torch.arange(6.0).view(2, 3))
            network.bias.zero_()
        optimizer = build_optimizer(network, OptimizerConfig(name=name, lr=0.1))  # type: ignore[arg-type]
        for k in range(6):
            if k == split_at:
                state = optimizer.state_dict()
                optimizer = build_optimizer(network, OptimizerConfig(name=name, lr=0.1))  # type: ignore[arg-type]
                optimizer.load_state_dict(state)
            network.weight.grad = torch.full((2, 3), 0.1 * k)
            network.bias.grad = torch.ones(2)
            optimizer.step()
        return network.weight.detach().clone()

    assert torch.equal(trained(None), trained(3))


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "sgdm"},
        {"schedule": "linear"},
        {"lr": -1.0},
        {"lr": float("inf")},
        {"name": "lars", "nesterov": True},
        {"schedule": "step"},
        {"clip_gradient_norm": 0.0},
    ],
)
def test_a_setting_outside_its_domain_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong)) if len(wrong) == 1 else "nesterov"):
        OptimizerConfig(**wrong)  # type: ignore[arg-type]


def test_a_network_without_trainable_parameters_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing to train"):
        build_optimizer(nn.Linear(2, 2).requires_grad_(False), OptimizerConfig())


def test_learning_rate_and_weight_decay_end_where_dino_has_them() -> None:
    config = OptimizerConfig(
        name="adamw", lr=5e-4, warmup_epochs=1.0, final_lr=1e-6, weight_decay=0.04, final_weight_decay=0.4,
        exclude_norm_and_bias=True,
    )  # fmt: skip
    rates = [learning_rate(config, k, total_steps=110, steps_per_epoch=10, global_batch_size=512) for k in range(111)]
    assert [rates[0], rates[5], rates[10]] == pytest.approx([0.0, 5e-4, 1e-3])
    cosines = [1e-6 + 0.5 * (1e-3 - 1e-6) * (1 + math.cos(math.pi * k / 100)) for k in range(101)]  # utils.py
    assert rates[10:] == pytest.approx(cosines)
    decays = [weight_decay(config, k, total_steps=100) for k in (0, 50, 100)]
    assert decays == pytest.approx([0.04, 0.22, 0.4])
    optimizer = build_optimizer(nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2)), config)
    set_weight_decay_(optimizer, 0.3)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.3, 0.0]
    assert weight_decay(OptimizerConfig(weight_decay=0.1), 7, total_steps=9) == 0.1


def test_gradients_are_clipped_parameter_by_parameter_as_dino_does() -> None:
    network = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    network(torch.ones(1, 3) * 5).sum().backward()
    before = [p.grad.clone() for p in network.parameters() if p.grad is not None]
    network[0].bias.requires_grad_(False).grad = None
    clip_gradients_(network.parameters(), OptimizerConfig(clip_each_gradient_norm=0.5))
    for parameter, gradient in zip(network.parameters(), before, strict=True):
        if parameter.grad is not None:
            expected = gradient * min(1.0, 0.5 / (gradient.norm().item() + 1e-6))  # utils.clip_gradients
            torch.testing.assert_close(parameter.grad, expected)
    assert max(p.grad.norm().item() for p in network.parameters() if p.grad is not None) == pytest.approx(0.5)


def test_a_least_learning_rate_belongs_to_the_cosine() -> None:
    with pytest.raises(ConfigError, match="final_lr needs schedule cosine, got constant"):
        OptimizerConfig(schedule="constant", final_lr=1e-6)
