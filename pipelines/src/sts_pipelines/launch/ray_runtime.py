"""The training loop's `Runtime` inside a Ray Train worker.

Checkpoints go straight into the run folder, checksummed and renamed into place, and not through Ray's own registry:
that one learns of a checkpoint only when the controller next polls, so the newest would be lost with the controller.
Ray is told the metrics of a step only where a checkpoint is due, because every report waits for that poll too.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray.train
import ray.train.torch
import torch
from torch import nn

from sts_methods.runs.runtime import RunPlan
from sts_pipelines.launch.runtime import ProcessRuntime
from sts_pipelines.launch.storage import Mirror
from sts_pipelines.launch.trackers import Tracker

Measure = Callable[[nn.Module], Mapping[str, float]]


class RayRuntime(ProcessRuntime):
    """One rank of a Ray Train worker group; all ranks see `folder`.

    `measure`, if given, is called on every rank with the method whenever a checkpoint is due, and what it returns is
    reported to Ray beside the metrics: that is how a search learns how good a trial is.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        label: str = "",
        trackers: Sequence[Tracker] = (),
        mirror: Mirror | None = None,
        measure: Measure | None = None,
    ) -> None:
        super().__init__(
            folder,
            label=label,
            trackers=trackers,
            mirror=mirror,
            leads_machine=ray.train.get_context().get_local_rank() == 0,
            device=worker_device(),
            progress=False,
        )
        self.measure = measure
        self._method: nn.Module | None = None
        self._total_steps = 0

    def wrap(self, module: nn.Module) -> nn.Module:
        self._method = module
        return super().wrap(module)

    def start(self, plan: RunPlan) -> None:
        super().start(plan)
        self._total_steps = plan.total_steps

    def report(self, metrics: Mapping[str, float], save: Callable[[], dict[str, Any]] | None = None) -> None:
        super().report(metrics, save)
        if save is None or metrics["step"] >= self._total_steps:
            return  # the end is told by the results: a search must not stop a trial that only has to be evaluated
        measured: Mapping[str, float] = {}
        if self.measure is not None and self._method is not None:
            measured = self.measure(self._method)
        ray.train.report({**metrics, **measured})


def worker_device() -> torch.device:
    """The device that Ray gave this worker."""
    device = ray.train.torch.get_device()
    return device if isinstance(device, torch.device) else torch.device(device)
