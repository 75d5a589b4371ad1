"""All that a training step changes, and hence all that a checkpoint holds: student, teachers, optimizer, scaler."""

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from sts_core import Buffers, ConfigError, Smoother, TeacherBank
from sts_methods.batch import Batch
from sts_methods.methods.base import StudentTeacherMethod
from sts_methods.networks.batch_norm import CrossRankBatchNorm
from sts_methods.networks.normalise import shared_as
from sts_methods.runs.runtime import Runtime
from sts_methods.training.config import TrainingConfig
from sts_methods.training.optimizers import (
    build_optimizer,
    clip_gradients_,
    learning_rate,
    nonfinite,
    set_learning_rate_,
    set_weight_decay_,
    step_unless_,
    weight_decay,
)
from sts_methods.training.precision import autocast_dtype


class Learner:
    """The parts of one step of the paper's algorithm, each a method: gradients, student, teacher.

    `total_steps` and `steps_per_epoch` place a step in the schedules; nothing else is remembered between steps.
    """

    def __init__(
        self,
        config: TrainingConfig,
        method: StudentTeacherMethod,
        runtime: Runtime,
        *,
        total_steps: int,
        steps_per_epoch: int,
    ) -> None:
        self.config = config
        self.total_steps, self.steps_per_epoch = total_steps, steps_per_epoch
        self.method = method.to(runtime.device)
        if config.channels_last:
            self.method.to(memory_format=torch.channels_last)
        if config.compile:
            _check_compilable(method, runtime.world_size)
            # The networks and not the whole forward, which a new step number would have compiled again.
            method.backbone("student").compile()
            method.backbone("teacher").compile()
        self.device = runtime.device
        _check_buffers(config.smoothing.buffers, method)
        self._dtype = autocast_dtype(config.precision, runtime.device)
        self.scaler = torch.amp.GradScaler(runtime.device.type, enabled=self._dtype == torch.float16)
        self.optimizer = build_optimizer(self.method, config.optimizer)
        self._trained = [parameter for parameter in self.method.parameters() if parameter.requires_grad]
        self.smoother = Smoother(
            student=method.student, teacher=method.teacher, config=config.smoothing, seed=config.seed
        )
        self.bank = None
        if config.bank:
            self.bank = TeacherBank(student=method.student, configs=config.bank, seed=config.seed, spread=True)
        self._smooths_statistics = any(one.buffers == "smooth" for one in (config.smoothing, *config.bank.values()))
        self._wrapped: nn.Module = runtime.wrap(self.method)
        self.skip = torch.zeros((), device=self.device)
        """1 if the last gradients, of any rank, or their losses are not finite: then student and teacher stay."""

    def accumulate_gradients(self, batches: Sequence[Batch]) -> dict[str, Tensor]:
        """Gradients of the mean loss over the micro-batches; the mean loss and metrics, detached."""
        self.optimizer.zero_grad(set_to_none=True)
        buffers = {}
        if self.config.on_nonfinite == "warn":
            buffers = {name: buffer.clone() for name, buffer in self.method.named_buffers()}
        totals: dict[str, Tensor] = {}
        for number, batch in enumerate(batches, start=1):
            with self._synchronised(number == len(batches)), shared_as(batch.shares):
                with torch.autocast(self.device.type, dtype=self._dtype, enabled=self._dtype is not None):
                    result = self._wrapped(self._laid_out(batch))
                # DDP takes the mean over ranks, whatever they have; a division by 1 is no rounding
                loss = result.loss / (len(batches) / batch.weight)
                self.scaler.scale(loss).backward(_one_if_finite(loss.detach()))
            for name, value in {"loss": result.loss, **result.metrics}.items():
                share = value.detach().float() / (len(batches) / batch.weight)
                totals[name] = totals[name] + share if name in totals else share
        self.skip = self._look_at_gradients()
        self._forget_batches(buffers)
        return totals

    def _look_at_gradients(self) -> Tensor:
        """The flag `skip`, which stays on the device; gradients that were scaled for float16 are unscaled."""
        if self.scaler.is_enabled():
            self.scaler.unscale_(self.optimizer)
            (found,) = self.scaler._found_inf_per_device(self.optimizer).values()
            return cast(Tensor, found)
        return nonfinite(self._trained, self.device)

    @torch.no_grad()
    def _forget_batches(self, before: Mapping[str, Tensor]) -> None:
        """If `skip`, take back what the last forward passes left in buffers: statistics, a queue, a centre."""
        if not before or (self.device.type == "cpu" and not self.skip):
            return
        now = dict(self.method.named_buffers())
        for name, old in before.items():
            torch.where(self.skip.bool(), old, now[name], out=now[name])

    def update_student(self, step: int) -> None:
        """One optimizer step, unless `skip`."""
        set_learning_rate_(self.optimizer, self.learning_rate(step))
        set_weight_decay_(self.optimizer, weight_decay(self.config.optimizer, step, total_steps=self.total_steps))
        self.method.adjust_gradients_(step)
        clip_gradients_(self._trained, self.config.optimizer)
        step_unless_(self.skip, self.optimizer)
        self.scaler.update()

    def update_teacher(self, step: int) -> None:
        """One smoother update, unless `skip`, of the method's teacher and of every teacher in the bank."""
        if self._smooths_statistics:
            self.method.share_statistics_()
        self.smoother.update(momentum=self.momentum(step), skip=self.skip)
        if self.bank is not None:
            self.bank.update(skip=self.skip)

    def take_back(self) -> None:
        """The last step was skipped, the host has learnt: its update of the teachers does not count."""
        self.smoother.take_back()
        if self.bank is not None:
            self.bank.take_back()

    def learning_rate(self, step: int) -> float:
        return learning_rate(
            self.config.optimizer,
            step,
            total_steps=self.total_steps,
            steps_per_epoch=self.steps_per_epoch,
            global_batch_size=self.config.global_batch_size,
        )

    def momentum(self, step: int) -> float:
        return self.config.momentum_at(step, total_steps=self.total_steps)

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Everything that has to be the same on all ranks, and a bank that is not spread over them."""
        modules: dict[str, nn.Module] = {"": self.method}
        if self.bank is not None and not self.bank.is_spread:
            modules |= {f"bank.{name}.": teacher for name, teacher in self.bank.teachers.items()}
        for prefix, module in modules.items():
            for name, tensor in (*module.named_parameters(), *module.named_buffers()):
                yield prefix + name, tensor

    def bank_state(self) -> dict[str, Any] | None:
        """The bank's part of a checkpoint, to which all ranks contribute."""
        return None if self.bank is None else self.bank.state_dict()

    def state_dict(self, bank: Mapping[str, Any] | None) -> dict[str, Any]:
        """A whole state with what `bank_state` gave."""
        return {
            "method": self.method.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "smoother": self.smoother.state_dict(),
            "bank": bank,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.method.load_state_dict(state["method"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scaler.is_enabled() and state["scaler"]:  # empty where float16 was asked for and not to be had
            self.scaler.load_state_dict(state["scaler"])
        self.smoother.load_state_dict(state["smoother"])
        if self.bank is not None:
            self.bank.load_state_dict(state["bank"])

    def _synchronised(self, last: bool) -> AbstractContextManager[Any]:
        """Ranks exchange gradients in the last micro-batch of a step only."""
        if last or not isinstance(self._wrapped, nn.parallel.DistributedDataParallel):
            return contextlib.nullcontext()
        return self._wrapped.no_sync()

    def _laid_out(self, batch: Batch) -> Batch:
        if not self.config.channels_last:
            return batch
        views = tuple(_channels_last(view) for view in batch.views)
        labelled, teachers = (
            None if images is None else _channels_last(images) for images in (batch.labelled, batch.teachers_labelled)
        )
        return replace(batch, views=views, labelled=labelled, teachers_labelled=teachers)


def _check_compilable(method: nn.Module, num_workers: int) -> None:
    """torch.compile would cut the networks to pieces at every exchange, and be slower than without."""
    if num_workers > 1 and any(isinstance(module, CrossRankBatchNorm) for module in method.modules()):
        raise ConfigError(
            f"compile must be false where batch norm covers the batches of several workers, got true for {num_workers}",
            fields=("compile",),
        )


def _check_buffers(buffers: Buffers, method: StudentTeacherMethod) -> None:
    """A teacher in train mode has statistics of its own, one in eval mode depends on getting the student's."""
    needed = getattr(method, "teacher_buffers", buffers)
    if buffers != needed:
        warnings.warn(
            f"the teacher of {type(method).__name__} should have smoothing.buffers={needed!r}, got {buffers!r}: its "
            f"batch norm statistics will not be those of its own features",
            UserWarning,
            stacklevel=4,
        )


def _one_if_finite(loss: Tensor) -> Tensor:
    """The gradient that a backward pass starts from; NaN for a loss that is none, which so reaches the other ranks."""
    return 1.0 + (loss - loss)


def _channels_last(images: Tensor) -> Tensor:
    return images.contiguous(memory_format=torch.channels_last) if images.dim() == 4 else images
