"""The teacher update: one teacher that follows its student."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from sts_core.attachment import Attachment, eagerly
from sts_core.binding import (
    STATE_VERSION,
    Applied,
    Attachable,
    Binding,
    Buffers,
    Watches,
    check_seed,
    check_state,
    make_rule,
)
from sts_core.config import SmoothingConfig, check_config
from sts_core.kernels.interface import Backend
from sts_core.pairing import WIDE, Selection, pair
from sts_core.schedules import Schedule
from sts_core.swap import check_not_swapped, swapped


class Smoother(Attachable):
    """Keeps a teacher as a smoothed version of its student.

    >>> student = torch.nn.Linear(4, 2)
    >>> teacher = make_teacher(student)
    >>> smoother = Smoother(student=student, teacher=teacher, config=spatial_temporal_smoothing(0.99, 0.7), seed=0)
    >>> optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    >>> student(torch.ones(1, 4)).sum().backward()
    >>> optimizer.step()
    >>> smoother.update()  # or, once before the loop: smoother.attach(optimizer)
    >>> smoother.applied
    Applied(momentum=0.99, preserve_probability=0.7, num_updates=1)

    Tensors of `student` and `teacher` are paired by name. The student may have modules that the teacher lacks, never
    the reverse. DDP and `torch.compile` wrappers are seen through. `config` says how the teacher follows. Draws depend
    on (`seed`, number of updates, unit) alone: give every rank the same seed and all hold the same teacher. `backend`
    "auto" takes the fastest kernel there is. `names`, `exclude` and `trainable_only` are those of `make_teacher`.
    With `stochastic_rounding` the teacher may be bfloat16 (`teacher.bfloat16()`): half the memory, right on average.
    Of a teacher in the host's memory (`make_teacher(student, device="cpu")`) with `deferred` updates the host does the
    arithmetic of a step while the device computes the next one: see `finish`.
    """

    def __init__(
        self,
        *,
        student: nn.Module,
        teacher: nn.Module,
        config: SmoothingConfig,
        seed: int,
        backend: Backend = "auto",
        names: str | Sequence[str] = "*",
        exclude: str | Sequence[str] = (),
        trainable_only: bool = False,
        stochastic_rounding: bool = False,
        deferred: bool = False,
    ) -> None:
        self._selection = Selection(names, exclude, trainable_only)
        self._dtypes = (*WIDE, torch.bfloat16) if stochastic_rounding else WIDE
        self._backend, self._deferred = backend, deferred
        self.student, self._teacher = student, teacher
        self.config = check_config(config)
        self.seed = check_seed(seed)
        self.step = 0
        """Number of updates so far: the next update's index."""
        self.applied: Applied | None = None
        """m and p of the last update."""
        self._applied_before: Applied | None = None
        self._start()

    def _start(self) -> None:
        self._bind()
        if self._deferred:
            self._defer(self._teacher, self._binding)

    def _bind(self) -> None:
        pairs = pair(self.student, self._teacher, self.config.buffers, self._selection, dtypes=self._dtypes)
        self._binding = Binding([pairs.smoothed], self._backend, self._dtypes, deferred=self._deferred)
        self._watches = Watches(self.student, [self._teacher], [self._binding])
        self._buffers = Buffers(pairs.copied, deferred=self._deferred)

    @property
    def teacher(self) -> nn.Module:
        """The teacher, up to date."""
        self.finish()
        return self._teacher

    def finish(self) -> None:
        """Finish the last update, if updates are deferred and it is still under way.

        Calling, saving or loading the teacher, `swapped()` and reading `smoother.teacher` do it. Who reads parameters
        of the teacher that were kept from before finds, until then, those of the update before.
        """
        self._binding.finish()
        self._buffers.finish()

    def update(
        self,
        momentum: float | None = None,
        preserve_probability: float | None = None,
        *,
        skip: Tensor | None = None,
    ) -> None:
        """Move the teacher one step: once after every optimizer step. Arguments override the config's m and p.

        A `skip` of one float that is 1 leaves the weights as they are, and the kernel reads it where it lies: no host
        waits for a device. Who learns later that it was 1 says so by `take_back()`, before the next update.
        """
        self._check_detached("update() must not be called")
        eagerly(self._update)(momentum, preserve_probability, skip)

    def take_back(self) -> None:
        """The last update was skipped: it does not count, and the next one has its draws."""
        self.step, self.applied = self.step - 1, self._applied_before

    def attach(
        self, *optimizers: object, momentum: Schedule | None = None, preserve_probability: Schedule | None = None
    ) -> Attachment:
        """Update after every step of the optimizer, but not after one that a GradScaler skips; `detach()` ends it.

        Of several optimizers, given in the order in which they step, the last one's steps count. Schedules are called
        with the number of updates so far.
        """

        def update() -> None:
            self._update(momentum and momentum(self.step), preserve_probability and preserve_probability(self.step))

        return self._attach(optimizers, (momentum, preserve_probability), update)

    def swapped(self) -> AbstractContextManager[nn.Module]:
        """`with smoother.swapped():` the student computes with the teacher's weights and buffers inside.

        For evaluation, generation and saving; costs a copy of the student's weights while it lasts. Afterwards the
        student is what it was, to the bit, also when an exception leaves the block.
        """
        return swapped(self.student, self.teacher, self._selection)

    @torch.no_grad()
    def _update(self, momentum: float | None, preserve_probability: float | None, skip: Tensor | None = None) -> None:
        check_not_swapped(self.student, "a teacher must not be updated")
        rule = make_rule(self.config, self.step, self.seed, momentum, preserve_probability)
        self._watches.check()
        if self._watches.have_other_buffers():
            self.finish()
            self._bind()
        self._applied_before = self.applied
        (self.applied,) = self._binding.update([rule], skip)
        self._buffers.copy()
        self.step += 1

    def state_dict(self) -> dict[str, Any]:
        """Seed, number of updates and config: all that the next draw depends on. The teacher's weights are its own."""
        return {"version": STATE_VERSION, "seed": self.seed, "step": self.step, "config": asdict(self.config)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Carry on where `state` was taken; refuses the state of another config and says what differs."""
        check_state(state, asdict(self.config))
        self.seed, self.step = check_seed(state["seed"]), int(state["step"])
