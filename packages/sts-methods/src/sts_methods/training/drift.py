"""How far the teacher moves from epoch to epoch: the paper's smoothing figure, recorded while training."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from sts_core import ConfigError, output_drift, parameter_drift
from sts_core.distributed import gather_batch
from sts_methods.data.batches import TrainingData
from sts_methods.training.config import TrainingConfig


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


def drift_tracker(config: TrainingConfig, data: TrainingData, teacher: nn.Module) -> DriftTracker:
    """On the first view of the ranks' first batch: the same images in every run of this seed and after a resume."""
    steps = config.last_step(data.steps_per_epoch)
    if steps < data.steps_per_epoch:
        raise ConfigError(
            f"track_drift compares the teacher epoch by epoch, got {steps} of an epoch's {data.steps_per_epoch} steps: "
            "train at least one, or set track_drift to false"
        )
    first = next(data.steps(0))[0]
    if config.data.on_error == "skip":
        data.skipped.clear()  # a resumed run may have met none of these
    view = first.views[0]
    return DriftTracker(teacher, gather_batch(view, first.rows_of_ranks(len(view))))
