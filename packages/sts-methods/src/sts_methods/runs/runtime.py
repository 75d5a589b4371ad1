"""Where a training loop runs: the narrow border between the loop and whatever launched it."""

import atexit
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sts_core.distributed import broadcast_object, rank, world_size
from sts_core.files import write_atomically
from sts_methods.runs.appointment import Appointment
from sts_methods.runs.checkpoint import CheckpointStore, read_checkpoint
from sts_methods.runs.metrics_log import MetricsLog
from sts_methods.runs.progress_line import ProgressDisplay


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """What a run is about to do, told to its runtime before the first step."""

    config: Mapping[str, Any]
    """The resolved config as JSON values."""
    first_step: int
    """The step it starts at: 0, or that of the restored checkpoint."""
    total_steps: int
    steps_per_epoch: int
    images_per_step: int
    """Labelled and unlabelled images of all ranks, as images_per_second counts them."""
    keep_checkpoints: int
    """How many checkpoints to keep."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """What evaluation is told of it."""
    note: str | None = None
    """What the user should know before the first step."""


class Runtime(Protocol):
    """What `fit` asks of its surroundings.

    In this order: `restore`, `wrap`, `start`, any number of `report`s, `close`; each is called equally often on every
    rank. `close` is called whether the steps go well or not.
    """

    rank: int
    world_size: int
    device: torch.device
    folder: Path
    """The run folder, to which rank 0 writes the final backbones and the indices of offending batches."""

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module ready for gradients on all ranks: DDP, or the module itself."""
        ...

    def restore(self) -> dict[str, Any] | None:
        """The newest intact checkpoint of this run, or None at the start."""
        ...

    def start(self, plan: RunPlan) -> None:
        """The run is built (and restored) and is about to take its first step."""
        ...

    def report(self, metrics: Mapping[str, float], save: Callable[[], dict[str, Any]] | None = None) -> None:
        """Log metrics and, when `save` is given, keep the checkpoint that it returns (called on rank 0 only).

        `metrics` has "step", the number of optimizer steps done. What `save` returns refers to live tensors: copy it
        (`checkpoint.snapshot`) or write it before returning.
        """
        ...

    def close(self) -> None:
        """Finish pending writes; no report follows."""
        ...


class RunListener(Protocol):
    """What else happens during a run: part of a `LocalRuntime`, which calls it on every rank, in this order.

    `restore` before the run folder is read; `start` and every `report` after the runtime has written its own files;
    `close` when the last checkpoint is on disk. Several listeners are called in the order in which they were given.
    """

    def restore(self) -> None:
        """The run folder is about to be searched for a checkpoint."""
        ...

    def start(self, plan: RunPlan, method: nn.Module) -> None:
        """`method`, not wrapped for several ranks, is about to take the first step of `plan`."""
        ...

    def report(self, metrics: Mapping[str, float], saved: Callable[[], None] | None) -> None:
        """The metrics of a step. Where a checkpoint was handed over, `saved` waits until it is on disk."""
        ...

    def close(self) -> None:
        """No report follows."""
        ...


def distribute(module: nn.Module) -> nn.Module:
    """`module` in DDP when there are several ranks. Buffers are not broadcast: methods keep them equal themselves."""
    if world_size() == 1:
        return module
    options: dict[str, Any] = {"broadcast_buffers": False}
    if "forward_sync_buffers" in DistributedDataParallel.__init__.__code__.co_varnames:
        options = {"forward_sync_buffers": False}  # the new name; torch 2.15 warns about the old one
    wrapped = DistributedDataParallel(module, gradient_as_bucket_view=True, **options)
    # DDP measures itself in ten steps, and then in every hundredth, for which it waits for the device.
    wrapped._set_ddp_runtime_logging_sample_rate(1 << 30)  # type: ignore[no-untyped-call]
    _arrange_buckets(wrapped)
    return wrapped


class _SumOfParameters(nn.Module):
    """0 times all trained parameters, added in such an order that the last one's gradient is ready first."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.wrapped = module

    def forward(self) -> Tensor:
        total = torch.zeros(())
        for parameter in self.wrapped.parameters():
            if parameter.requires_grad:
                total = total.to(parameter.device) + 0.0 * parameter.sum()
        return total


def _arrange_buckets(wrapped: DistributedDataParallel) -> None:
    """Let DDP arrange its buckets before the first step.

    DDP arranges them after the first backward pass that it sees, in the order in which gradients came, and ranks sum an
    element in an order that depends on its place in a bucket: the first step of a run, or of a resumed run, would sum
    in another order than all others. Here it sees a pass over the parameters alone, which needs no batch and leaves
    nothing behind, and its order is that of a backward pass, so that sums still travel while gradients are computed.
    """
    module, wrapped.module = wrapped.module, _SumOfParameters(wrapped.module)
    try:
        wrapped().backward()
    finally:
        wrapped.module = module
    wrapped.zero_grad(set_to_none=True)


def join_process_group() -> None:
    """Under torchrun, meet the other processes that it started, until this one ends."""
    if dist.is_initialized() or not dist.is_torchelastic_launched():
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(default_device())
    # Both by name: of a group that torch chooses nobody could tell which tensors it takes.
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    atexit.register(_leave_process_group)


def _leave_process_group() -> None:
    dist.destroy_process_group()
    # A thread of gloo's may still hold the tensors of the last exchange. It needs the interpreter to let go of them and
    # aborts the process if that is gone; torch has no call that waits for it, and DDP keeps its threads alive.
    time.sleep(0.5)


class LocalRuntime:
    """Runs `fit` in this process, with everything in one folder; under torchrun, in every process of the group.

        config.json                 the resolved config
        training.json               the training as sts-eval reads it
        metrics.jsonl               one JSON object a line
        labels.json                 the label split of a semi-supervised method
        checkpoints/step-00000123/  the last few
        teacher.safetensors, student.safetensors (+ .json) at the end

    Calling `fit` again with the same folder carries on from the newest intact checkpoint. `listeners` take part in the
    run; `write_config=False` is for a caller that writes the first two itself. `request`, given on all ranks but called
    on rank 0 alone, after every step, may ask for a checkpoint ahead of time: it returns None, or what to call when one
    is on disk. `on_step` is called with the number of steps done after each of them, on every rank.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        device: torch.device | str | None = None,
        progress: bool = True,
        stream: TextIO | None = None,
        write_config: bool = True,
        listeners: Sequence[RunListener] = (),
        request: Callable[[], Callable[[], None] | None] | None = None,
        on_step: Callable[[int], None] | None = None,
    ) -> None:
        join_process_group()
        self.folder = Path(folder)
        self.rank, self.world_size = rank(), world_size()
        self.device = torch.device(device) if device is not None else default_device()
        self.log = MetricsLog(self.folder / "metrics.jsonl")
        self.checkpoints = CheckpointStore(self.folder / "checkpoints")
        self.listeners = tuple(listeners)
        self._write_config, self._show_progress, self._stream = write_config, progress, stream
        self._request, self._on_step = request, on_step
        self._asked: Callable[[], None] | None = None
        """Whom a checkpoint ahead of time was promised."""
        self._appointment: Appointment | None = None
        self._last_step = 0
        self._display: ProgressDisplay | None = None
        self._method: nn.Module | None = None

    def wrap(self, module: nn.Module) -> nn.Module:
        self._method = module
        return distribute(module)

    def restore(self) -> dict[str, Any] | None:
        """The newest intact checkpoint; rank 0 chooses, so that a damaged one cannot split the group."""
        for listener in self.listeners:
            listener.restore()
        step = self.checkpoints.newest_intact() if self.rank == 0 else None
        step = broadcast_object(step)  # where ranks first meet: one of them may have scanned its images for long
        return None if step is None else read_checkpoint(self.checkpoints.path(step))

    def start(self, plan: RunPlan) -> None:
        if self.rank == 0:
            self._open(plan)
        self._last_step = plan.total_steps
        if self._request is not None:
            self._appointment = Appointment()
        assert self._method is not None, "wrap comes before start"
        for listener in self.listeners:
            listener.start(plan, self._method)

    def _open(self, plan: RunPlan) -> None:
        if self._write_config:
            for name, content in (("config", plan.config), ("training", plan.training)):
                write_atomically(self.folder / f"{name}.json", json.dumps(content, indent=1) + "\n")
        self.log.truncate(after_step=plan.first_step)
        self.checkpoints.keep = plan.keep_checkpoints
        if self._show_progress:
            if plan.note is not None:
                print(plan.note, file=self._stream or sys.stderr, flush=True)
            self._display = ProgressDisplay(
                total_steps=plan.total_steps, images_per_step=plan.images_per_step, stream=self._stream
            )

    def report(self, metrics: Mapping[str, float], save: Callable[[], dict[str, Any]] | None = None) -> None:
        if self.rank == 0:
            self.log.append(metrics)
            if save is not None:
                self.checkpoints.save(int(metrics["step"]), save())
            if self._display is not None:
                self._display.show(metrics)
        for listener in self.listeners:
            listener.report(metrics, None if save is None else self.checkpoints.wait)

    def end_step(self, step: int, save: Callable[[], dict[str, Any]]) -> None:
        """Tell of the step, and keep the checkpoint that `save` returns if one was asked for.

        Only rank 0 hears of a request, but all ranks call `save` after the same step: of several ranks two steps later.
        """
        if self._on_step is not None:
            self._on_step(step)
        if self._appointment is None:
            return
        if self.rank == 0:
            self._hear(step, self._appointment)
        if not self._appointment.is_now(step):
            return
        state = save()
        if self.rank == 0:
            self.checkpoints.wait()
            if step not in self.checkpoints.steps():
                self.checkpoints.save(step, state, ahead=True)
            self._answer()

    def _hear(self, step: int, appointment: Appointment) -> None:
        """Make an appointment with the other ranks for who asks now, unless a checkpoint of this step is due anyway."""
        if self._asked is None and self._request is not None:
            self._asked = self._request()
            if self._asked is not None:
                self.checkpoints.wait()
                if step in self.checkpoints.steps():
                    self._answer()
                else:
                    appointment.make(step, last=self._last_step)

    def _answer(self) -> None:
        """Tell who asked that the checkpoint is on disk, when it is."""
        self.checkpoints.wait()
        answer, self._asked = self._asked, None
        if answer is not None:
            answer()

    def close(self) -> None:
        if self._display is not None:
            self._display.close()
        try:
            self.checkpoints.close()
        finally:
            for listener in self.listeners:
                listener.close()


def default_device() -> torch.device:
    """This process's GPU, or the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    return torch.device("cpu")
