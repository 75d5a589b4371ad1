"""How far and how smoothly a teacher moves: the quantities of the paper's smoothing figure, and fragments' ages."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sts_core import masks
from sts_core.config import SmoothingConfig
from sts_core.errors import ConfigError, PairingError
from sts_core.kernels.interface import Rule
from sts_core.kernels.reference import drawn_channels, drawn_units
from sts_core.pairing import numbers, pair, unwrap
from sts_core.sharded.blocks import reshard, whole


@torch.no_grad()
def parameter_drift(a: nn.Module, b: nn.Module) -> float:
    """Mean squared difference over all weights of two networks: (1/n)·Σᵢ(aᵢ − bᵢ)²."""
    total, count = 0.0, 0
    for _, left, right in pair(a, b, "keep").smoothed:
        total += float(whole((numbers(left).double() - numbers(right).double().to(left.device)).square().sum()))
        count += numbers(left).numel()
    return total / count if count else 0.0


@torch.no_grad()
def output_drift(a: nn.Module, b: nn.Module, batch: Tensor) -> float:
    """Mean squared difference of two networks' outputs on one batch, both in evaluation mode."""
    outputs = [_evaluate(module, batch) for module in (a, b)]
    if outputs[0].shape != outputs[1].shape:
        shapes = " and ".join(str(tuple(output.shape)) for output in outputs)
        raise PairingError(f"outputs must have one shape, got {shapes}: compare two editions of one network")
    return float((outputs[0].double() - outputs[1].double()).square().mean())


def _evaluate(module: nn.Module, batch: Tensor) -> Tensor:
    """The output in evaluation mode; every submodule's mode is put back afterwards."""
    modes = [(m, m.training) for m in module.modules()]
    module.eval()
    try:
        output = module(batch)
    finally:
        for submodule, training in modes:
            submodule.training = training
    if not isinstance(output, Tensor):
        raise PairingError(f"the network must return a tensor, got {type(output).__name__}: wrap it to return one")
    return output


@torch.no_grad()
def fragment_age(
    teacher: nn.Module, config: SmoothingConfig, *, seed: int, step: int, horizon: int | None = None
) -> dict[str, Tensor]:
    """For each parameter tensor, how many updates ago each of its units last moved, after `step` updates.

    0 means the last update moved it; a unit that did not move within the last `horizon` updates (all, unless given)
    has age `horizon`. Shapes: [] for layer and module, [dim 0] for channel, the tensor's own for neuron. Recomputed
    from the draws, so nothing has to be recorded during training.
    """
    if step < 0 or (horizon is not None and horizon < 0):
        raise ConfigError(f"step and horizon must not be negative, got {step} and {horizon}: count updates from 0")
    span = step if horizon is None else min(step, horizon)
    reshard(teacher)
    tensors = [(name, numbers(tensor)) for name, tensor in unwrap(teacher).named_parameters()]
    ages = {name: torch.full(_unit_shape(tensor, config), span, dtype=torch.int64) for name, tensor in tensors}
    for age in range(span - 1, -1, -1):
        rule = Rule(0.0, config.preserve_probability, config.granularity, step - 1 - age, seed)
        for name, updated in _updated_units(tensors, rule):
            ages[name][updated] = age
    return ages


def _unit_shape(tensor: Tensor, config: SmoothingConfig) -> Sequence[int]:
    if config.granularity == "neuron":
        return tensor.shape
    return tensor.shape[:1] if config.granularity == "channel" else ()


def _updated_units(tensors: list[tuple[str, Tensor]], rule: Rule) -> list[tuple[str, Tensor]]:
    """A bool tensor for each parameter: which of its units this update moves."""
    p = rule.preserve_probability
    if p in (0.0, 1.0):
        config = SmoothingConfig(momentum=0.0, preserve_probability=0.0, granularity=rule.granularity)
        return [(name, torch.full(_unit_shape(tensor, config), p == 0.0)) for name, tensor in tensors]
    if rule.granularity in ("layer", "module"):
        drawn = drawn_units([name for name, _ in tensors], rule)
        return [(name, torch.tensor(take)) for (name, _), take in zip(tensors, drawn, strict=True)]
    if rule.granularity == "channel":
        sizes = [(name, len(tensor) if tensor.dim() else 1) for name, tensor in tensors]
        drawn_rows = drawn_channels(sizes, rule)
        return [(name, rows.view(tensor.shape[:1])) for (name, tensor), rows in zip(tensors, drawn_rows, strict=True)]
    return [(name, _neurons(name, tensor, rule)) for name, tensor in tensors]


def _neurons(name: str, tensor: Tensor, rule: Rule) -> Tensor:
    p = rule.preserve_probability
    return masks.neuron_mask(name, tensor.numel(), probability=p, step=rule.step, seed=rule.seed).view(tensor.shape)
