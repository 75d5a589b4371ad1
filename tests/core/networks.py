"""Small networks with every kind of tensor."""

import copy

import torch
from torch import nn


class Net(nn.Module):
    """Every kind of tensor: convolution, norm with buffers, a wide matrix, a 0-d parameter and an empty one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 10, 3)
        self.norm = nn.BatchNorm2d(10)
        self.head = nn.Linear(70, 300)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.nothing = nn.Parameter(torch.zeros(0, 4))


def moved(module: nn.Module, amount: float = 1.0) -> nn.Module:
    """A copy of the module with other values everywhere."""
    other = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(amount * torch.randn_like(parameter))
    return other
