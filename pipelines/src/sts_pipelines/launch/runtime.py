"""The training loop's `Runtime` in a pipeline: that of sts-methods, and trackers."""

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from sts_methods.runs.runtime import LocalRuntime, RunPlan
from sts_pipelines.errors import RunError
from sts_pipelines.launch.progress import write_plan
from sts_pipelines.launch.storage import Mirror
from sts_pipelines.launch.trackers import Tracker


class ProcessRuntime(LocalRuntime):
    """Runs in this process; rank 0 also tells the trackers, and leaves a note for whoever watches the folder.

    `leads_machine` is true for one rank of every machine: the one that copies from the storage.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        label: str = "",
        trackers: Sequence[Tracker] = (),
        mirror: Mirror | None = None,
        leads_machine: bool = True,
        device: torch.device | None = None,
        progress: bool = True,
    ) -> None:
        super().__init__(folder, device=device, progress=progress)
        self.label = label
        self.trackers = list(trackers) if self.rank == 0 else []
        self.mirror = mirror
        self.leads_machine = leads_machine
        self._pushing: threading.Thread | None = None

    def restore(self) -> dict[str, Any] | None:
        self.fetch()
        return super().restore()

    def fetch(self) -> None:
        """Bring what is in the storage, if the run has one, to the machines of all ranks."""
        if self.mirror is not None and self.rank == 0:
            self.mirror.pull()
        self.share()

    def share(self) -> None:
        """Bring rank 0's run folder to the other machines, by way of the storage: one rank on each takes it."""
        if self.mirror is None:
            return
        if self.rank == 0:
            self.mirror.push()
        self._wait_for_all()
        if self.leads_machine and self.rank != 0:
            self.mirror.pull()
        self._wait_for_all()

    def _wait_for_all(self) -> None:
        if self.world_size > 1:
            dist.barrier()

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
        if save is not None and self.mirror is not None and self.rank == 0:
            self._push_later()

    def _push_later(self) -> None:
        """Copy to the storage in the background; a copy that is still under way takes the newest along next time."""
        if self._pushing is None or not self._pushing.is_alive():
            self._pushing = threading.Thread(target=self._push, name="storage", daemon=True)
            self._pushing.start()

    def _push(self) -> None:
        assert self.mirror is not None
        self.checkpoints.wait()
        try:
            self.mirror.push()
        except RunError as error:  # the next checkpoint takes along what is missing
            warnings.warn(str(error), UserWarning, stacklevel=2)

    def close(self) -> None:
        for tracker in self.trackers:
            tracker.close()
        super().close()
        if self._pushing is not None:
            self._pushing.join()
        if self.mirror is not None and self.rank == 0:
            self.mirror.push()
