"""The learning rate as a pure function of the iteration, and SGD with its two groups of parameters."""

import torch
from torch import nn

from sts_eval.detection.config import DetectionConfig


def learning_rate(iteration: int, config: DetectionConfig) -> float:
    """The rate of iteration k = 0, 1, ... with warm-up of W iterations from factor f, and steps at s₁ < s₂ < ...:

    η·γ^#{i: k ≥ sᵢ}, and for k < W the line from f·η at k = 0 to what the schedule gives at k = W.
    """
    if iteration < config.warmup_iterations:
        done = iteration / config.warmup_iterations
        end = _stepped(config.warmup_iterations, config)
        return config.warmup_factor * config.learning_rate * (1 - done) + end * done
    return _stepped(iteration, config)


def _stepped(iteration: int, config: DetectionConfig) -> float:
    num_steps = sum(iteration >= step for step in config.lr_steps)
    return config.learning_rate * config.lr_gamma**num_steps


def build_optimizer(detector: nn.Module, config: DetectionConfig) -> torch.optim.SGD:
    """SGD with weight decay on all but the normalisation layers."""
    norm: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for module in detector.modules():
        group = norm if isinstance(module, nn.BatchNorm2d) else rest
        group.extend(module.parameters(recurse=False))
    groups = [
        {"params": rest, "weight_decay": config.weight_decay},
        {"params": norm, "weight_decay": config.weight_decay_norm},
    ]
    return torch.optim.SGD(groups, lr=config.learning_rate, momentum=config.momentum)
