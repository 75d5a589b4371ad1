"""What is measured of a method while it trains, in such a way that the training does not notice."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from sts_core import ConfigError
from sts_methods.methods.base import StudentTeacherMethod


@dataclass(frozen=True, kw_only=True)
class Observation:
    """Numbers that join the metrics of the last step of every so many epochs.

    `measure` is called on every rank. What it draws from torch's generators is put back, and so are the modes of all
    modules; weights and buffers it must leave as they are, which `sts_eval.extract_features` proves.
    """

    every_epochs: int
    """Passes over the data between two measurements."""
    measure: Callable[[StudentTeacherMethod], Mapping[str, float]]
    """From the method to numbers by name, such as knn/teacher/top1."""

    def __post_init__(self) -> None:
        if self.every_epochs < 1:
            raise ConfigError(f"every_epochs must be at least 1, got {self.every_epochs}", fields=("every_epochs",))

    def of(self, method: StudentTeacherMethod, device: torch.device) -> dict[str, float]:
        """The numbers of the method as it is."""
        with unnoticed(method, device):
            return dict(self.measure(method))


@contextmanager
def unnoticed(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Afterwards torch's generators and the modes of all modules are as before."""
    modes = [(part, part.training) for part in module.modules()]
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
    for part, mode in modes:
        part.training = mode
