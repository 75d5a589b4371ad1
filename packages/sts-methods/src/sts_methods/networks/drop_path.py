"""Stochastic depth of transformers whose draws are functions of (seed, step, image, view, layer): nothing to save.

timm's layers ask torch's global generator, whose draws depend on how a batch is shared and where a run resumed.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from sts_core import ConfigError
from sts_core.masks import philox
from sts_methods.batch import Batch

DROP_PATH_STREAM = 3072  # of the first view; beyond those of views (draws.py)


class DropPath(nn.Module):
    """y = x · b / (1 − rate) with b = 0 for a share `rate` of the samples; y = x unless `draws` are there.

    `draws` holds a number in [0, 1] for each row of x.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.draws: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.draws is None or self.rate == 0.0:
            return x
        kept = (self.draws >= self.rate).to(x.dtype) / (1.0 - self.rate)
        return x * kept.view(-1, *[1] * (x.dim() - 1))


def use_drop_path(transformer: nn.Module, rate: float) -> list[DropPath]:
    """Give the residual branches of timm's blocks a DropPath each, at rates from 0 to `rate` as the depth grows."""
    blocks = list(getattr(transformer, "blocks", ()))
    if not blocks or not all(hasattr(block, "drop_path1") and hasattr(block, "drop_path2") for block in blocks):
        raise ConfigError(
            f"drop_path needs one of timm's transformers, with blocks of two residual branches, got "
            f"{type(transformer).__name__}: set it to 0",
            fields=("drop_path", "backbone"),
        )
    layers = []
    for block, share in zip(blocks, torch.linspace(0.0, rate, len(blocks)).tolist(), strict=True):
        block.drop_path1, block.drop_path2 = DropPath(share), DropPath(share)
        layers += [block.drop_path1, block.drop_path2]
    return layers


def draws_of(batch: Batch, num_layers: int, *, seed: int) -> Tensor:
    """Numbers in [0, 1] for each layer and row, [layers, views · N], where view after view lies in the rows.

    Those of `sts_methods.draws` as float32 (to which the largest round up to 1), with the step for the epoch, on the
    batch's device, for which nobody waits.
    """
    device, num_views = batch.indices.device, len(batch.views)
    blocks = torch.arange(-(-num_layers // 4), device=device).view(1, -1, 1)
    keys = (batch.indices.long() | batch.step << 32).view(1, 1, -1)
    streams = torch.arange(DROP_PATH_STREAM, DROP_PATH_STREAM + num_views, device=device).view(-1, 1, 1)
    words = torch.stack(philox(blocks, keys, streams, seed), dim=2)  # [views, blocks, 4, N]
    drawn = words.flatten(1, 2)[:, :num_layers].transpose(0, 1).flatten(1)
    return drawn.to(torch.float32) * 2.0**-32


@contextmanager
def dropping(layers: Sequence[DropPath], draws: Tensor | None) -> Iterator[None]:
    """In here the layers drop by these draws, [layers, rows]; without any they do nothing."""
    for number, layer in enumerate(layers):
        layer.draws = None if draws is None else draws[number]
    try:
        yield
    finally:
        for layer in layers:
            layer.draws = None
