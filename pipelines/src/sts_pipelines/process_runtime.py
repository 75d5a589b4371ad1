"""The training loop's `Runtime` in a pipeline: that of sts-methods, and trackers."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from sts_methods.runtime import LocalRuntime, RunPlan
from sts_pipelines.progress import write_plan
from sts_pipelines.tracking import Tracker


class ProcessRuntime(LocalRuntime):
    """Runs in this process; rank 0 also tells the trackers, and leaves a note for whoever watches the folder."""

    def __init__(
        self,
        folder: str | Path,
        *,
        label: str = "",
        trackers: Sequence[Tracker] = (),
        device: torch.device | None = None,
        progress: bool = True,
    ) -> None:
        super().__init__(folder, device=device, progress=progress)
        self.label = label
        self.trackers = list(trackers) if self.rank == 0 else []

    def start(self, plan: RunPlan) -> None:
        super().start(plan)
        if self.rank == 0:
            write_plan(self.folder, plan, label=self.label)
        for tracker in self.trackers:
            tracker.start(plan)

    def report(self, metrics: Mapping[str, float], save: Callable[[], dict[str, Any]] | None = None) -> None:
        super().report(metrics, save)
        for tracker in self.trackers:
            tracker.log(metrics)

    def close(self) -> None:
        for tracker in self.trackers:
            tracker.close()
        super().close()
