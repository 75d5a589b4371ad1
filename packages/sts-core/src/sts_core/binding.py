"""Teachers bound to the kernels that move them, and what a Smoother and a TeacherBank have in common."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sts_core.attachment import Attachment
from sts_core.config import SmoothingConfig, check_probability
from sts_core.errors import ConfigError, PairingError, StateError
from sts_core.kernels import choice
from sts_core.kernels.interface import Backend, Kernel, Pair, Rule
from sts_core.pairing import WIDE, NamedPair, addresses
from sts_core.sharded.blocks import local, shard_of

STATE_VERSION = 1


@dataclass(frozen=True)
class Applied:
    """The m and p of an update that took place."""

    momentum: float
    preserve_probability: float
    num_updates: int
    """Updates so far, this one included; fewer than optimizer steps where some were left out."""


class Binding:
    """Teachers with one set of smoothed names, bound to kernels; binds anew when a tensor's memory moved."""

    def __init__(self, pairs: list[list[NamedPair]], backend: Backend, dtypes: Sequence[torch.dtype] = WIDE) -> None:
        self._backend, self._dtypes = backend, dtypes
        self._pairs = [
            Pair(rows[0].name, rows[0].student, tuple(r.teacher for r in rows), shard_of(rows[0].name, rows[0].student))
            for rows in zip(*pairs, strict=True)
        ]
        self._tensors = [tensor for p in self._pairs for tensor in (p.student, *p.teachers)]
        self._is_sharded = any(p.shard for p in self._pairs)
        self._bind()

    def _bind(self) -> None:
        self._addresses = self._present_addresses()
        for name, student, teachers, _ in self._pairs:
            for teacher in teachers:
                _check_bindable(name, student, teacher, self._dtypes)
        data = [
            Pair(p.name, local(p.student).detach(), tuple(local(t).detach() for t in p.teachers), p.shard)
            for p in self._pairs
        ]
        self._kernels: list[Kernel] = choice.bind(data, self._backend)
        self._written = [teacher for p in data for teacher in p.teachers]

    def _present_addresses(self) -> list[int]:
        return addresses(list(map(local, self._tensors)) if self._is_sharded else self._tensors)

    def update(self, rules: list[Rule], skip: Tensor | None = None) -> list[Applied]:
        """Move every teacher by its rule, unless `skip` holds 1, and say what was applied."""
        if self._present_addresses() != self._addresses:
            self._bind()
        choice.update(self._kernels, rules, skip)
        # Kernels write through raw pointers: tell autograd, which guards tensors saved for a backward pass.
        torch.autograd.graph.increment_version(self._written)
        return [Applied(rule.momentum, rule.preserve_probability, rule.step + 1) for rule in rules]


def _check_bindable(name: str, student: Tensor, teacher: Tensor, dtypes: Sequence[torch.dtype]) -> None:
    if teacher.dtype not in dtypes:
        raise PairingError(f"the teacher must stay float32, but {name!r} became {teacher.dtype}: call teacher.float()")
    if student.shape != teacher.shape:
        raise PairingError(
            f"shapes must stay equal, but {name!r} became {tuple(student.shape)} in the student and "
            f"{tuple(teacher.shape)} in the teacher: build the Smoother anew"
        )


def make_rule(
    config: SmoothingConfig, step: int, seed: int, momentum: float | None, preserve_probability: float | None
) -> Rule:
    m = config.momentum if momentum is None else check_probability("momentum", momentum)
    p = config.preserve_probability
    if preserve_probability is not None:
        p = check_probability("preserve_probability", preserve_probability)
    rule = Rule.by_config.get(type(config), Rule)
    return rule(momentum=m, preserve_probability=p, granularity=config.granularity, step=step, seed=seed)


def check_seed(seed: object) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 64:
        raise ConfigError(f"seed must be an integer in [0, 2**64), got {seed!r}: pass one, the same on every rank")
    return seed


def copy_buffers(pairs: list[NamedPair]) -> None:
    alike: dict[torch.dtype, list[NamedPair]] = {}  # of one type each, else torch copies tensor by tensor
    for p in pairs:
        if p.student.dtype == p.teacher.dtype and p.student.device == p.teacher.device:
            alike.setdefault(p.student.dtype, []).append(p)
    for same in alike.values():
        torch._foreach_copy_([p.teacher for p in same], [p.student for p in same])
    for p in pairs:
        if p.student.dtype != p.teacher.dtype or p.student.device != p.teacher.device:
            p.teacher.copy_(p.student)


def check_state(state: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    missing = {"version", "seed", "step", "config"} - set(state)
    if missing or state["version"] != STATE_VERSION:
        raise StateError(
            f"a smoother state has version {STATE_VERSION}, seed, step and config, this one has "
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


class Attachable:
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
