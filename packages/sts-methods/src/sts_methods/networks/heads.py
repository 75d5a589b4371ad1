"""What the methods put on a backbone, and how their networks come from a seed."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from sts_methods.networks.backbones import features


@contextmanager
def initialised_from(seed: int) -> Iterator[None]:
    """Weights made inside come from `seed` alone; torch's generator is as before afterwards.

    Networks are made on the CPU, so that a seed means the same weights on every machine.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


class Encoder(nn.Module):
    """A backbone and a head: images -> features -> whatever the head makes of them."""

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, images: Tensor) -> Tensor:
        return self.head(features(self.backbone, images))  # type: ignore[no-any-return]


def norm_mlp(inputs: int, hidden: int, outputs: int, *, output_bias: bool) -> nn.Sequential:
    """Linear, batch norm, ReLU, Linear: BYOL's projector and predictor."""
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.BatchNorm1d(hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, outputs, bias=output_bias),
    )


def linear_classifier(inputs: int, num_classes: int) -> nn.Linear:
    """Xavier-normal weights and zero biases, as the FixMatch code bases start their classifier."""
    layer = nn.Linear(inputs, num_classes)
    nn.init.xavier_normal_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
