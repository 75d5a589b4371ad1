"""The teacher update: `Smoother` for one teacher, `TeacherBank` for many teachers of one student."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sts_core.attachment import Attachment
from sts_core.config import SmoothingConfig, check_probability
from sts_core.errors import ConfigError, PairingError, StateError
from sts_core.kernels import choice
from sts_core.kernels.interface import Backend, Kernel, Pair, Rule
from sts_core.pairing import NamedPair, Watch, addresses, make_teacher, pair
from sts_core.swap import check_not_swapped, swapped

Schedule = Callable[[int], float]
"""A value for each update, by its index: pure, so that a resumed run goes on as it would have."""

_STATE_VERSION = 1


@dataclass(frozen=True)
class Applied:
    """The m and p of an update that took place."""

    momentum: float
    preserve_probability: float
    num_updates: int
    """Updates so far, this one included; fewer than optimizer steps where some were left out."""


class _Binding:
    """Teachers with one set of smoothed names, bound to kernels; binds anew when a tensor's memory moved."""

    def __init__(self, pairs: list[list[NamedPair]], backend: Backend) -> None:
        self._backend = backend
        self._pairs = [
            Pair(rows[0].name, rows[0].student, tuple(row.teacher for row in rows)) for rows in zip(*pairs, strict=True)
        ]
        self._tensors = [tensor for p in self._pairs for tensor in (p.student, *p.teachers)]
        self._written = [teacher for p in self._pairs for teacher in p.teachers]
        self._bind()

    def _bind(self) -> None:
        self._addresses = addresses(self._tensors)
        for name, student, teachers in self._pairs:
            for teacher in teachers:
                _check_bindable(name, student, teacher)
        data = [Pair(p.name, p.student.detach(), tuple(t.detach() for t in p.teachers)) for p in self._pairs]
        self._kernels: list[Kernel] = choice.bind(data, self._backend)

    def update(self, rules: list[Rule]) -> list[Applied]:
        """Move every teacher by its rule, and say what was applied."""
        if addresses(self._tensors) != self._addresses:
            self._bind()
        choice.update(self._kernels, rules)
        # Kernels write through raw pointers: tell autograd, which guards tensors saved for a backward pass.
        torch.autograd.graph.increment_version(self._written)
        return [Applied(rule.momentum, rule.preserve_probability, rule.step + 1) for rule in rules]


def _check_bindable(name: str, student: Tensor, teacher: Tensor) -> None:
    if teacher.dtype not in (torch.float32, torch.float64):
        raise PairingError(f"the teacher must stay float32, but {name!r} became {teacher.dtype}: call teacher.float()")
    if student.shape != teacher.shape:
        raise PairingError(
            f"shapes must stay equal, but {name!r} became {tuple(student.shape)} in the student and "
            f"{tuple(teacher.shape)} in the teacher: build the Smoother anew"
        )


def _rule(
    config: SmoothingConfig, step: int, seed: int, momentum: float | None, preserve_probability: float | None
) -> Rule:
    m = config.momentum if momentum is None else check_probability("momentum", momentum)
    p = config.preserve_probability
    if preserve_probability is not None:
        p = check_probability("preserve_probability", preserve_probability)
    return Rule(momentum=m, preserve_probability=p, granularity=config.granularity, step=step, seed=seed)


def _check_seed(seed: object) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 64:
        raise ConfigError(f"seed must be an integer in [0, 2**64), got {seed!r}: pass one, the same on every rank")
    return seed


def _copy_buffers(pairs: list[NamedPair]) -> None:
    alike = [p for p in pairs if p.student.dtype == p.teacher.dtype and p.student.device == p.teacher.device]
    if alike:
        torch._foreach_copy_([p.teacher for p in alike], [p.student for p in alike])
    for p in pairs:
        if p.student.dtype != p.teacher.dtype or p.student.device != p.teacher.device:
            p.teacher.copy_(p.student)


class _Attachable:
    """What a Smoother and a TeacherBank have in common: they can follow an optimizer."""

    student: nn.Module
    _attachment: Attachment | None = None

    def _attach(self, optimizers: tuple[object, ...], update: Callable[[], None]) -> Attachment:
        self._check_detached("attach() must not be called again")
        self._attachment = Attachment(self.student, optimizers, update)
        return self._attachment

    def _check_detached(self, what: str) -> None:
        if self._attachment is not None and self._attachment.is_active:
            raise StateError(f"{what} while an attached optimizer makes the updates: detach() it first")


class Smoother(_Attachable):
    """Keeps a teacher as a smoothed version of its student.

        smoother = Smoother(student=student, teacher=teacher, config=spatial_temporal_smoothing(0.99, 0.7), seed=0)
        ...
        optimizer.step()
        smoother.update()  # or, once before the loop: smoother.attach(optimizer)

    Tensors are paired by name. The student may have modules that the teacher lacks, never the reverse. DDP and
    `torch.compile` wrappers are seen through. Draws depend on (seed, number of updates, unit) alone: give every rank
    the same seed and all hold the same teacher.
    """

    def __init__(
        self,
        *,
        student: nn.Module,
        teacher: nn.Module,
        config: SmoothingConfig,
        seed: int,
        backend: Backend = "auto",
    ) -> None:
        pairs = pair(student, teacher, config.buffers)
        self.student, self.teacher = student, teacher
        self.config = config
        self.seed = _check_seed(seed)
        self.step = 0
        """Number of updates so far: the next update's index."""
        self.applied: Applied | None = None
        """m and p of the last update."""
        self._copied = pairs.copied
        self._watches = [Watch("student", student), Watch("teacher", teacher)]
        self._binding = _Binding([pairs.smoothed], backend)

    def update(self, momentum: float | None = None, preserve_probability: float | None = None) -> None:
        """Move the teacher one step: once after every optimizer step. Arguments override the config's m and p."""
        self._check_detached("update() must not be called")
        self._update(momentum, preserve_probability)

    def attach(
        self, *optimizers: object, momentum: Schedule | None = None, preserve_probability: Schedule | None = None
    ) -> Attachment:
        """Update after every step of the optimizer, but not after one that a GradScaler skips; `detach()` ends it.

        Of several optimizers, given in the order in which they step, the last one's steps count. Schedules are called
        with the number of updates so far.
        """

        def update() -> None:
            self._update(momentum and momentum(self.step), preserve_probability and preserve_probability(self.step))

        return self._attach(optimizers, update)

    def swapped(self) -> AbstractContextManager[nn.Module]:
        """`with smoother.swapped():` the student computes with the teacher's weights and buffers inside.

        For evaluation, generation and saving; costs a copy of the student's weights while it lasts. Afterwards the
        student is what it was, to the bit, also when an exception leaves the block.
        """
        return swapped(self.student, self.teacher)

    @torch.no_grad()
    def _update(self, momentum: float | None, preserve_probability: float | None) -> None:
        check_not_swapped(self.student, "a teacher must not be updated")
        rule = _rule(self.config, self.step, self.seed, momentum, preserve_probability)
        for watch in self._watches:
            watch.check()
        (self.applied,) = self._binding.update([rule])
        _copy_buffers(self._copied)
        self.step += 1

    def state_dict(self) -> dict[str, Any]:
        """Seed, number of updates and config: all that the next draw depends on. The teacher's weights are its own."""
        return {"version": _STATE_VERSION, "seed": self.seed, "step": self.step, "config": asdict(self.config)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Carry on where `state` was taken; refuses the state of another config and says what differs."""
        _check_state(state, asdict(self.config))
        self.seed, self.step = _check_seed(state["seed"]), int(state["step"])


def _check_state(state: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    missing = {"version", "seed", "step", "config"} - set(state)
    if missing or state["version"] != _STATE_VERSION:
        raise StateError(
            f"a smoother state has version {_STATE_VERSION}, seed, step and config, this one has "
            f"{', '.join(sorted(map(str, state)))}: pass what Smoother.state_dict() returned"
        )
    saved = state["config"]
    names = [*config, *(name for name in saved if name not in config)]
    differences = [
        f"{name} was {saved.get(name)!r} and is now {config.get(name)!r}"
        for name in names
        if saved.get(name) != config.get(name)
    ]
    if differences:
        raise StateError(
            f"a state can be loaded only under the config it was saved with, but {'; '.join(differences)}: "
            f"build the Smoother with the saved config, or start without the state"
        )


class TeacherBank(_Attachable):
    """Many teachers of one student, updated together so that each student weight is read once.

        bank = TeacherBank(student=student, configs={"tma": temporal_moving_average(0.999), ...}, seed=0)
        optimizer.step(); bank.update()
        bank.teachers["tma"]

    Each teacher is bit for bit the one that a `Smoother` of its own, with the same seed, would keep.
    """

    def __init__(
        self, *, student: nn.Module, configs: Mapping[str, SmoothingConfig], seed: int, backend: Backend = "auto"
    ) -> None:
        if not configs:
            raise ConfigError("a TeacherBank needs at least one config, got none: pass configs={'tma': ...}")
        self.student = student
        self.configs = dict(configs)
        self.seed = _check_seed(seed)
        self.step = 0
        self.applied: dict[str, Applied] = {}
        """m and p of the last update, by teacher; empty before the first."""
        self.teachers = {name: make_teacher(student) for name in self.configs}
        pairs = {name: pair(student, self.teachers[name], config.buffers) for name, config in self.configs.items()}
        self._copied = [named for name in pairs for named in pairs[name].copied]
        self._watches = [Watch("student", student), *(Watch("teacher", t) for t in self.teachers.values())]
        # Teachers that smooth the same tensors (buffers may or may not be among them) share one pass.
        groups: dict[bool, list[str]] = {}
        for name, config in self.configs.items():
            groups.setdefault(config.buffers == "smooth", []).append(name)
        self._bindings = [
            (names, _Binding([pairs[name].smoothed for name in names], backend)) for names in groups.values()
        ]

    def update(self) -> None:
        """Move every teacher one step; call it once after every optimizer step."""
        self._check_detached("update() must not be called")
        self._update()

    def attach(self, *optimizers: object) -> Attachment:
        """Update after every step of the optimizer, as `Smoother.attach` does."""
        return self._attach(optimizers, self._update)

    def swapped(self, name: str) -> AbstractContextManager[nn.Module]:
        """`with bank.swapped("tma"):` the student computes with that teacher's weights, as in `Smoother.swapped`."""
        if name not in self.teachers:
            raise ConfigError(f"swapped() takes one of the teachers {', '.join(self.teachers)}, got {name!r}")
        return swapped(self.student, self.teachers[name])

    @torch.no_grad()
    def _update(self) -> None:
        check_not_swapped(self.student, "a teacher must not be updated")
        for watch in self._watches:
            watch.check()
        for names, binding in self._bindings:
            rules = [_rule(self.configs[name], self.step, self.seed, None, None) for name in names]
            self.applied |= zip(names, binding.update(rules), strict=True)
        _copy_buffers(self._copied)
        self.step += 1

    def state_dict(self) -> dict[str, Any]:
        """Seed, number of updates, configs, what was applied last, and the teachers' weights."""
        return {
            "version": _STATE_VERSION,
            "seed": self.seed,
            "step": self.step,
            "config": {name: asdict(config) for name, config in self.configs.items()},
            "applied": {name: asdict(applied) for name, applied in self.applied.items()},
            "teachers": {name: teacher.state_dict() for name, teacher in self.teachers.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Carry on where `state` was taken; refuses the state of other configs and says what differs."""
        _check_state(state, {name: asdict(config) for name, config in self.configs.items()})
        for name, teacher in self.teachers.items():
            teacher.load_state_dict(state["teachers"][name])
        self.applied = {name: Applied(**applied) for name, applied in state.get("applied", {}).items()}
        self.seed, self.step = _check_seed(state["seed"]), int(state["step"])
