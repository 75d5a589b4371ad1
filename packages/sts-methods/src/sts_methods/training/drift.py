"""How far the teacher moves from epoch to epoch: the paper's smoothing figure, recorded while training."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from sts_core import output_drift, parameter_drift


class DriftTracker:
    """Mean squared change of the teacher's weights, and of its outputs on a fixed batch, between adjacent epochs."""

    def __init__(self, teacher: nn.Module, batch: Tensor) -> None:
        self.teacher = teacher
        self.batch = batch
        self.previous = copy.deepcopy(teacher)

    @torch.no_grad()
    def end_epoch(self) -> dict[str, float]:
        """The drift since the last call (or the start); the teacher of now is kept for the next."""
        drift = {
            "parameter_drift": parameter_drift(self.previous, self.teacher),
            "output_drift": output_drift(self.previous, self.teacher, self.batch),
        }
        self.previous.load_state_dict(self.teacher.state_dict())
        return drift

    def state_dict(self) -> dict[str, Any]:
        return dict(self.previous.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.previous.load_state_dict(state)
