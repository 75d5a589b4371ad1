"""What a pipeline adds to the training loop's runtime, as parts that listen to a run, and what puts them together.

Checkpoints go straight into the run folder, checksummed and renamed into place, and not through Ray's own registry:
that one learns of a checkpoint only when the controller next polls, so the newest would be lost with the controller.
"""

import contextlib
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import torch
from torch import nn

from sts_core.distributed import barrier, rank, world_size
from sts_methods import LocalRuntime, RunListener, RunPlan, StudentTeacherMethod
from sts_pipelines.errors import RunError
from sts_pipelines.evaluation.duration import seconds_of_evaluation
from sts_pipelines.launch.job import Job
from sts_pipelines.launch.progress import note_seconds_left, tell_seconds_left, write_plan
from sts_pipelines.launch.requests import ask, request_in
from sts_pipelines.launch.standstill import StandstillWatch
from sts_pipelines.launch.storage import Mirror
from sts_pipelines.launch.trackers import Tracker, build_trackers

REPORT_OF_ESTIMATE = 2  # the first one holds what happens once
Measure = Callable[[nn.Module], Mapping[str, float]]


def build_runtime(
    job: Job,
    storage: "StorageCopy",
    *,
    also: Sequence[RunListener] = (),
    device: torch.device | None = None,
    progress: bool = True,
    watch: StandstillWatch | None = None,
) -> LocalRuntime:
    """The runtime of a job: its folder, a note for the watcher, trackers, the storage, and what else is to listen.

    The storage comes after all that write into the folder, so that it copies what they wrote.
    """
    trackers = TrackerFeed(build_trackers(job.pipeline, job.folder))
    first = () if watch is None else (watch,)  # its end is not to wait for the others'
    parts = (*first, PlanNote(job, say=_say if progress else None), trackers, storage, *also)
    return LocalRuntime(
        job.folder,
        device=device,
        progress=progress,
        write_config=False,
        listeners=parts,
        request=request_in(job.folder),
        on_step=None if watch is None else watch.step,
    )


class _Part:
    """A `RunListener` that does nothing; each part below overrides what it is there for."""

    def restore(self) -> None:
        return

    def start(self, plan: RunPlan, method: nn.Module) -> None:
        return

    def report(self, metrics: Mapping[str, float], saved: Callable[[], None] | None) -> None:
        return

    def close(self) -> None:
        return


class PlanNote(_Part):
    """Leaves a note in the run folder for the driver, which watches it from another process.

    After the first steps the note says how long the rest will take; `say` is for a run that nobody watches.
    """

    def __init__(self, job: Job, *, say: Callable[[str], None] | None = None) -> None:
        self.job, self.say = job, say
        self._told: Callable[[Mapping[str, float]], None] | None = None
        self._num_reports = 0

    def start(self, plan: RunPlan, method: nn.Module) -> None:
        if rank() == 0:
            write_plan(self.job.folder, plan, label=self.job.label)
            self._told = partial(self._note_time_left, plan, method)

    def report(self, metrics: Mapping[str, float], saved: Callable[[], None] | None) -> None:
        self._num_reports += 1
        if self._told is not None and self._num_reports == REPORT_OF_ESTIMATE:
            self._told(metrics)

    def _note_time_left(self, plan: RunPlan, method: nn.Module, metrics: Mapping[str, float]) -> None:
        images = (plan.total_steps - metrics["step"]) * plan.images_per_step
        training = images / max(metrics["images_per_second"], 1e-9)
        config = self.job.pipeline.training
        ratio = config.data.unlabelled_ratio if config.data.with_labels else 1
        evaluation = seconds_of_evaluation(
            self.job.pipeline,
            cast(StudentTeacherMethod, method).backbone("teacher"),
            num_train=plan.steps_per_epoch * config.global_batch_size * ratio,
            batch_size=config.global_batch_size // config.accumulation // world_size(),
        )
        left = {"training": training, "evaluation": evaluation}
        note_seconds_left(self.job.folder, left)
        if self.say is not None:
            self.say(tell_seconds_left(self.job.label or "run", left))


def _say(line: str) -> None:
    """On a terminal below the bar, which is drawn again under it."""
    print(f"{chr(10) * sys.stderr.isatty()}{line}", file=sys.stderr, flush=True)


class TrackerFeed(_Part):
    """Rank 0 hands the metrics to the trackers."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self.trackers = trackers

    def start(self, plan: RunPlan, method: nn.Module) -> None:
        if rank() == 0:
            for tracker in self.trackers:
                tracker.start(plan)

    def report(self, metrics: Mapping[str, float], saved: Callable[[], None] | None) -> None:
        if rank() == 0:
            for tracker in self.trackers:
                tracker.log(metrics)

    def close(self) -> None:
        if rank() == 0:
            for tracker in self.trackers:
                tracker.close()


class StorageCopy(_Part):
    """Copies the run folder to and from the storage, if the run has one; without a `mirror` it does nothing.

    `leads_machine` is true for one rank of every machine: the one that copies from the storage.
    """

    def __init__(self, mirror: Mirror | None, *, leads_machine: bool = True) -> None:
        self.mirror, self.leads_machine = mirror, leads_machine
        self._pushing: threading.Thread | None = None

    def restore(self) -> None:
        """Bring what is in the storage to the machines of all ranks."""
        if self.mirror is not None and rank() == 0:
            self.mirror.pull()
        self.share()

    def share(self) -> None:
        """Bring rank 0's run folder to the other machines, by way of the storage: one rank on each takes it."""
        if self.mirror is None:
            return
        self.push()
        barrier()
        if self.leads_machine and rank() != 0:
            self.mirror.pull()
        barrier()

    def push(self) -> None:
        """Copy rank 0's run folder to the storage."""
        if self.mirror is not None and rank() == 0:
            self.mirror.push()

    @contextlib.contextmanager
    def kept(self, *, every_seconds: float = 60.0) -> Iterator[None]:
        """Push what the body leaves in the run folder, now and then: another machine may have to carry on."""
        if self.mirror is None or rank() != 0:
            yield
            return
        over = threading.Event()

        def push() -> None:
            while not over.wait(every_seconds):
                self._try_to_push()

        thread = threading.Thread(target=push, name="storage", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
        self.push()

    def report(self, metrics: Mapping[str, float], saved: Callable[[], None] | None) -> None:
        """Push in the background after a checkpoint; one that comes while a push is under way waits for the next."""
        if saved is None or self.mirror is None or rank() != 0:
            return
        if self._pushing is None or not self._pushing.is_alive():
            self._pushing = threading.Thread(target=self._push_when, args=(saved,), name="storage", daemon=True)
            self._pushing.start()

    def _push_when(self, saved: Callable[[], None]) -> None:
        saved()
        self._try_to_push()

    def _try_to_push(self) -> None:
        try:
            self.push()
        except RunError as error:  # the next one takes along what is missing
            warnings.warn(str(error), UserWarning, stacklevel=2)

    def close(self) -> None:
        if self._pushing is not None:
            self._pushing.join()
        self.push()


class PreemptionNotice(_Part):
    """Asks for a checkpoint when Ray knows that a machine will be taken away; looks whenever metrics are logged."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._asked = folder, False

    def report(self, metrics: Mapping[str, float], saved: Callable[[], None] | None) -> None:
        import ray.train

        if not self._asked and ray.train.get_preemption_info() is not None:  # all ranks ask Ray, and hear the same
            self._asked = True
            if rank() == 0:
                ask(self.folder)


class RayReport(_Part):
    """Reports to Ray Train the metrics of a step where a checkpoint is due; each report waits for Ray's next poll.

    `measure`, if given, is called on every rank with the method, and what it returns is reported beside the metrics:
    that is how a search learns how good a trial is.
    """

    def __init__(self, measure: Measure | None = None) -> None:
        self.measure = measure
        self._method: nn.Module | None = None
        self._total_steps = 0

    def start(self, plan: RunPlan, method: nn.Module) -> None:
        self._method, self._total_steps = method, plan.total_steps

    def report(self, metrics: Mapping[str, float], saved: Callable[[], None] | None) -> None:
        import ray.train

        if saved is None or metrics["step"] >= self._total_steps:
            return  # the end is told by the results: a search must not stop a trial that only has to be evaluated
        measured = self.measure(self._method) if self.measure is not None and self._method is not None else {}
        ray.train.report({**metrics, **measured})


def worker_device() -> torch.device:
    """The device that Ray gave this worker."""
    import ray.train.torch

    device = ray.train.torch.get_device()
    return device if isinstance(device, torch.device) else torch.device(device)
