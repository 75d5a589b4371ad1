"""Many teachers of one student, updated in one pass."""

import copy
from collections.abc import Iterable, Mapping, Sequence
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
    Watches,
    check_seed,
    check_state,
    copy_buffers,
    make_rule,
)
from sts_core.config import SmoothingConfig, check_config
from sts_core.distributed import gather_objects, is_parallel, rank, send_to_first, world_size
from sts_core.errors import ConfigError
from sts_core.kernels.interface import Backend
from sts_core.pairing import Selection, make_teacher, pair
from sts_core.schedules import Schedule
from sts_core.swap import check_not_swapped, swapped


class TeacherBank(Attachable):
    """Many teachers of one student, updated together so that each student weight is read once.

    >>> configs = {"tma": temporal_moving_average(0.999), "sts": spatial_temporal_smoothing(0.99, 0.7)}
    >>> bank = TeacherBank(student=torch.nn.Linear(4, 2), configs=configs, seed=0)
    >>> bank.update()  # after every step of the student's optimizer
    >>> bank.teachers["tma"]
    Linear(in_features=4, out_features=2, bias=True)

    `configs` names the teachers of `student`. Each is bit for bit the one that a `Smoother` of its own, with the same
    `seed`, would keep. `backend`, `names`, `exclude` and `trainable_only` are those of `Smoother`. With `spread` the
    teachers are shared out among the W ranks of the process group: rank r holds the r-th, the (r + W)-th and so on,
    which takes 1/W of the memory and no communication; `state_dict()` and `fetch()`, which all ranks call, bring them
    to rank 0. On `device` "cpu" they are in the host's memory, where one copy of the student serves all of them, and
    `deferred` is that of `Smoother`.
    """

    def __init__(
        self,
        *,
        student: nn.Module,
        configs: Mapping[str, SmoothingConfig],
        seed: int,
        backend: Backend = "auto",
        names: str | Sequence[str] = "*",
        exclude: str | Sequence[str] = (),
        trainable_only: bool = False,
        spread: bool = False,
        device: torch.device | str | None = None,
        deferred: bool = False,
    ) -> None:
        if not configs:
            raise ConfigError("a TeacherBank needs at least one config, got none: pass configs={'tma': ...}")
        self.student = student
        self.configs = {name: check_config(config) for name, config in configs.items()}
        self.seed = check_seed(seed)
        self.step = 0
        self.applied: dict[str, Applied] = {}
        """m and p of the last update, by teacher held here; empty before the first."""
        self._applied_before = self.applied
        self.is_spread = spread and is_parallel()
        """Whether other ranks hold teachers that this one does not."""
        self._selection = chosen = Selection(names, exclude, trainable_only)
        held = [name for name in self.configs if not self.is_spread or self._owner(name) == rank()]
        self._teachers = {name: make_teacher(student, **chosen._asdict(), device=device) for name in held}
        self._buffers_are_old = False
        self._backend, self._deferred = backend, deferred
        self._start()

    def _start(self) -> None:
        self._bind()
        for held_here, binding in self._bindings if self._deferred else ():
            for name in held_here:
                self._defer(self._teachers[name], binding)

    def _bind(self) -> None:
        pairs = {n: pair(self.student, t, self.configs[n].buffers, self._selection) for n, t in self._teachers.items()}
        self._copied = [named for name in pairs for named in pairs[name].copied]
        # Teachers that smooth the same tensors (buffers may or may not be among them) share one pass.
        groups: dict[bool, list[str]] = {}
        for name in self._teachers:
            groups.setdefault(self.configs[name].buffers == "smooth", []).append(name)
        self._bindings = [
            (names, Binding([pairs[name].smoothed for name in names], self._backend, deferred=self._deferred))
            for names in groups.values()
        ]
        self._watches = Watches(self.student, self._teachers.values(), [binding for _, binding in self._bindings])

    @property
    def teachers(self) -> dict[str, nn.Module]:
        """The teachers held here. Buffers that are the student's are copied when this is read, not at every update."""
        self.finish()
        if self._buffers_are_old:
            self._follow_buffers()
            with torch.no_grad():
                copy_buffers(self._copied)
            self._buffers_are_old = False
        return self._teachers

    def finish(self) -> None:
        """Finish the last update, if updates are deferred and it is still under way; see `Smoother.finish`."""
        for _, binding in self._bindings:
            binding.finish()

    def _follow_buffers(self) -> None:
        if self._watches.have_other_buffers():
            self.finish()
            self._bind()

    def update(self, momentum: Mapping[str, float] | None = None, *, skip: Tensor | None = None) -> None:
        """Move every teacher one step; call it once after every optimizer step. `skip` as in `Smoother.update`.

        `momentum` overrides the configs' m of the teachers that it names.
        """
        self._check_detached("update() must not be called")
        eagerly(self._update)(momentum or {}, skip)

    def take_back(self) -> None:
        """The last update was skipped: it does not count, and the next one has its draws."""
        self.step, self.applied = self.step - 1, self._applied_before

    def attach(self, *optimizers: object, momentum: Mapping[str, Schedule] | None = None) -> Attachment:
        """Update after every step of the optimizer, as `Smoother.attach` does; schedules are given by teacher."""
        schedules = momentum or {}
        self._check_known(schedules)
        return self._attach(
            optimizers, schedules.values(), lambda: self._update({k: f(self.step) for k, f in schedules.items()})
        )

    def swapped(self, name: str) -> AbstractContextManager[nn.Module]:
        """`with bank.swapped("tma"):` the student computes with that teacher's weights, as in `Smoother.swapped`."""
        if name not in self.teachers:
            raise ConfigError(f"swapped() takes one of the teachers {', '.join(self.teachers)}, got {name!r}")
        return swapped(self.student, self.teachers[name], self._selection)

    def _check_known(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self.configs:
                raise ConfigError(f"the bank's teachers are {', '.join(self.configs)}, got {name!r}")

    @torch.no_grad()
    def _update(self, momentum: Mapping[str, float], skip: Tensor | None = None) -> None:
        check_not_swapped(self.student, "a teacher must not be updated")
        self._check_known(momentum)
        self._watches.check()
        self._follow_buffers()
        self._applied_before = self.applied
        for names, binding in self._bindings:
            rules = [make_rule(self.configs[name], self.step, self.seed, momentum.get(name), None) for name in names]
            self.applied = self.applied | dict(zip(names, binding.update(rules, skip), strict=True))
        self._buffers_are_old = True
        self.step += 1

    def _owner(self, name: str) -> int:
        return list(self.configs).index(name) % world_size()

    def fetch(self, name: str) -> nn.Module | None:
        """A teacher, on rank 0 wherever it is held, on the CPU if that is elsewhere; None on other ranks."""
        state = self._fetch_state(name) if self.is_spread else {}
        if state is None or name in self.teachers:
            return self.teachers[name] if rank() == 0 else None
        teacher = copy.deepcopy(next(iter(self.teachers.values()))).cpu()
        teacher.load_state_dict(state)
        return teacher

    def _fetch_state(self, name: str) -> dict[str, Tensor] | None:
        """The state of a teacher of a spread bank, on rank 0; None on other ranks."""
        like = next(iter(self.teachers.values())).state_dict() if rank() == 0 else {}
        return send_to_first(
            self.teachers[name].state_dict() if name in self.teachers else None, self._owner(name), like
        )

    def state_dict(self) -> dict[str, Any]:
        """Seed, number of updates, configs, what was applied last, and the teachers' weights.

        Of a spread bank rank 0 gets all teachers, and all ranks have to call it.
        """
        applied, teachers = self.applied, {name: teacher.state_dict() for name, teacher in self.teachers.items()}
        if self.is_spread:
            applied = {name: one for part in gather_objects(self.applied) for name, one in part.items()}
            fetched = {name: self._fetch_state(name) for name in self.configs}
            teachers = {name: state for name, state in fetched.items() if state is not None}
        return {
            "version": STATE_VERSION,
            "seed": self.seed,
            "step": self.step,
            "config": {name: asdict(config) for name, config in self.configs.items()},
            "applied": {name: asdict(applied[name]) for name in self.configs if name in applied},
            "teachers": teachers,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Carry on where `state` was taken; refuses the state of other configs and says what differs."""
        check_state(state, {name: asdict(config) for name, config in self.configs.items()})
        for name, teacher in self.teachers.items():
            teacher.load_state_dict(state["teachers"][name])
        applied = state.get("applied", {})
        self.applied = {name: Applied(**applied[name]) for name in self.teachers if name in applied}
        self.seed, self.step = check_seed(state["seed"]), int(state["step"])
