"""Where a training loop runs: the narrow border between the loop and whatever launched it."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import nn


class Runtime(Protocol):
    """What `fit` asks of its surroundings; `report` and `restore` are called equally often on every rank."""

    rank: int
    world_size: int
    device: torch.device

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module ready for gradients on all ranks: DDP, or the module itself."""
        ...

    def restore(self) -> dict[str, Any] | None:
        """The newest intact checkpoint of this run, or None at the start."""
        ...

    def report(self, metrics: Mapping[str, float], save: Callable[[], dict[str, Any]] | None = None) -> None:
        """Log metrics and, when `save` is given, keep the checkpoint that it returns (called on rank 0 only)."""
        ...
