"""Batch-norm statistics of the final weights, averaged over many batches instead of trailing behind training."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from sts_core.distributed import sum_over_ranks_
from sts_eval.detection.samples import Sample


class _Population:
    """Mean and variance of everything seen, from the statistics of batches of n values each.

    μ = Σ n·μ_b / Σ n,   σ² = Σ n·(μ_b² + σ_b²·(n−1)/n) / Σ n − μ²   for unbiased batch variances σ_b².
    """

    def __init__(self, layer: nn.BatchNorm2d) -> None:
        assert layer.running_mean is not None
        self.layer = layer
        self.total = 0.0
        self.mean = torch.zeros_like(layer.running_mean)
        self.square = torch.zeros_like(layer.running_mean)

    def add(self, count: float) -> None:
        """Take in the batch that the layer has just seen, with momentum 1."""
        assert self.layer.running_mean is not None
        assert self.layer.running_var is not None
        self.total += count
        square = self.layer.running_mean.square() + self.layer.running_var * ((count - 1) / count)
        self.mean += (self.layer.running_mean - self.mean) * (count / self.total)
        self.square += (square - self.square) * (count / self.total)

    def write(self) -> None:
        """Set the layer's running statistics."""
        assert self.layer.running_mean is not None
        assert self.layer.running_var is not None
        self.layer.running_mean.copy_(self.mean)
        self.layer.running_var.copy_(self.square - self.mean.square())


@torch.no_grad()
def update_statistics_(detector: nn.Module, batches: Iterable[list[Sample]]) -> int:
    """Replace the running statistics of all batch-norm layers by those over `batches`; return how many there were.

    The detector runs in training mode, so that the box head sees the proposals it was trained on.
    """
    layers = [module for module in detector.modules() if isinstance(module, nn.BatchNorm2d)]
    populations = [_Population(layer) for layer in layers]
    num_batches = 0
    was_training = detector.training
    detector.train()
    with _counted(layers) as counts:
        for batch in batches:
            detector(batch)
            sizes = sum_over_ranks_(torch.tensor([float(counts[layer]) for layer in layers], dtype=torch.float64))
            for population, size in zip(populations, sizes.tolist(), strict=True):
                population.add(size)
            num_batches += 1
    detector.train(was_training)
    if num_batches:
        for population in populations:
            population.write()
    return num_batches


@contextmanager
def _counted(layers: list[nn.BatchNorm2d]) -> Iterator[dict[nn.Module, int]]:
    """Make running statistics the last batch's (momentum 1) and count the values in each layer's input."""
    counts: dict[nn.Module, int] = {}

    def count(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        counts[module] = inputs[0].numel() // inputs[0].shape[1]

    momenta = [layer.momentum for layer in layers]
    hooks = [layer.register_forward_pre_hook(count) for layer in layers]
    for layer in layers:
        layer.momentum = 1.0
    try:
        yield counts
    finally:
        for layer, momentum, hook in zip(layers, momenta, hooks, strict=True):
            layer.momentum = momentum
            hook.remove()
