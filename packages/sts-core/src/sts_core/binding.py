"""Teachers bound to the kernels that move them, and what a Smoother and a TeacherBank have in common."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakMethod

import torch
from torch import Tensor, nn

from sts_core.attachment import Attachment
from sts_core.config import SmoothingConfig, check_probability
from sts_core.errors import ConfigError, PairingError, StateError
from sts_core.kernels import choice
from sts_core.kernels.foresight import Foresight
from sts_core.kernels.interface import Backend, Kernel, Pair, Rule
from sts_core.kernels.native import NativeKernel
from sts_core.kernels.offload import OffloadKernel, travels
from sts_core.kernels.reference import ReferenceKernel
from sts_core.pairing import WIDE, NamedPair, Watch, addresses, numbers
from sts_core.sharded.blocks import Shard, local, shard_of

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

    def __init__(
        self,
        pairs: list[list[NamedPair]],
        backend: Backend,
        dtypes: Sequence[torch.dtype] = WIDE,
        *,
        deferred: bool = False,
    ) -> None:
        self._backend, self._dtypes, self._deferred = backend, dtypes, deferred
        self._pairs = [
            Pair(rows[0].name, rows[0].student, tuple(r.teacher for r in rows), _shard(rows[0]))
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
        data = self._data()
        self._kernels: list[Kernel] = choice.bind(data, self._backend, deferred=self._deferred)
        self._written = [local(teacher) for p in self._pairs for teacher in p.teachers]

    def _data(self) -> list[Pair]:
        """This rank's parts as they lie in memory now."""
        return [
            Pair(p.name, numbers(local(p.student)), tuple(numbers(local(t)) for t in p.teachers), p.shard)
            for p in self._pairs
        ]

    def _present_addresses(self) -> list[int]:
        return addresses(list(map(local, self._tensors)) if self._is_sharded else self._tensors)

    def update(self, rules: list[Rule], skip: Tensor | None = None) -> list[Applied]:
        """Move every teacher by its rule, unless `skip` holds 1, and say what was applied."""
        if self._present_addresses() != self._addresses:
            self.finish()
            self._bind()
        choice.update(self._kernels, rules, skip)
        # Kernels write through raw pointers: tell autograd, which guards tensors saved for a backward pass.
        torch.autograd.graph.increment_version(self._written)
        return [Applied(rule.momentum, rule.preserve_probability, rule.step + 1) for rule in rules]

    def check_deferred(self) -> None:
        """Raise unless the teachers, whose updates shall be deferred, are in the host's memory."""
        places = {teacher.device.type for teacher in self._written} - {"cpu"}
        if places:
            raise ConfigError(
                f"deferred updates are for a teacher in the host's memory, this one is on {', '.join(sorted(places))}: "
                f"make it by make_teacher(student, device='cpu'), or leave deferred out"
            )

    def finish(self) -> None:
        """Finish an update that was deferred."""
        moved = self._deferred and self._present_addresses() != self._addresses
        now = {pair.name: pair for pair in self._data()} if moved else None
        for kernel in self._kernels:
            if isinstance(kernel, OffloadKernel):
                kernel.finish(now)

    def reads(self) -> list[Tensor]:
        """The tensors that the checks before an update of this processor look at."""
        is_native = any(isinstance(kernel, NativeKernel) for kernel in self._kernels)
        return list(map(local, self._tensors)) if is_native else []


class Watches:
    """Student and teachers as they were paired, looked at before every update."""

    def __init__(self, student: nn.Module, teachers: Iterable[nn.Module], bindings: Iterable[Binding]) -> None:
        self._watches = [Watch("student", student), *(Watch("teacher", teacher) for teacher in teachers)]
        tensors = [tensor for binding in bindings for tensor in binding.reads()]
        objects = [item for watch in self._watches for item in watch.reads()]
        self._foresight = Foresight(objects, tensors) if tensors else None

    def check(self) -> None:
        """Raise if a parameter or submodule was added, removed or replaced since the pairing."""
        if self._foresight:
            self._foresight.call()
        for watch in self._watches:
            watch.check()

    def have_other_buffers(self) -> bool:
        """Whether a buffer is another tensor than it was."""
        return any(watch.has_other_buffers() for watch in self._watches)


def _shard(pair: NamedPair) -> Shard | None:
    shard = shard_of(pair.name, pair.student)
    return Shard((*shard.shape, 2), (*shard.offset, 0)) if shard and pair.student.is_complex() else shard


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


class Buffers:
    """Buffers that are the student's: copied on its device, or brought from there as weights are."""

    def __init__(self, pairs: Sequence[NamedPair], *, deferred: bool = False) -> None:
        away = [pair for p in pairs if travels(pair := Pair(p.name, p.student, (p.teacher,)))]
        self._away = OffloadKernel(away, lambda arriving: [ReferenceKernel(arriving)], deferred=deferred)
        names = {pair.name for pair in away}
        self._here = [p for p in pairs if p.name not in names]

    def copy(self) -> None:
        """Copy all that are here, and send the others on their way."""
        copy_buffers(self._here)
        if self._away.pairs:
            self._away.update([_COPY])

    def finish(self) -> None:
        """Finish a copy that was deferred."""
        self._away.finish()


_COPY = Rule(momentum=0.0, preserve_probability=0.0, granularity="layer", step=0, seed=0)


def copy_buffers(pairs: Sequence[NamedPair]) -> None:
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
            f"{', '.join(sorted(map(str, state))) or 'nothing'}: pass what Smoother.state_dict() returned"
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


class _BeforeReading:
    """A hook of a teacher whose updates are deferred: it is up to date when it is called, saved or loaded.

    A copy of the teacher, or one from a file, has nothing to wait for.
    """

    def __init__(self, finish: WeakMethod[Callable[[], None]] | None = None) -> None:
        self._finish = finish

    def __call__(self, *_: object) -> None:
        finish = self._finish and self._finish()
        if finish is not None:
            finish()

    def __reduce__(self) -> tuple[type["_BeforeReading"], tuple[()]]:
        return _BeforeReading, ()


_BOUND = ("_attachment", "_binding", "_bindings", "_buffers", "_copied", "_watches")


class Attachable:
    """What a Smoother and a TeacherBank have in common: they can follow an optimizer, and defer their updates."""

    student: nn.Module
    _attachment: Attachment | None = None

    def _start(self) -> None:
        """Bind to memory as it lies now."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        """All but what refers to memory and optimizers, which copies and pickles make anew or attach anew."""
        self.finish()
        return {name: value for name, value in vars(self).items() if name not in _BOUND}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._start()

    def finish(self) -> None:
        """Finish the last update, if updates are deferred and it is still under way."""
        raise NotImplementedError

    def _defer(self, teacher: nn.Module, binding: Binding) -> None:
        binding.check_deferred()
        hook = _BeforeReading(WeakMethod(self.finish))
        teacher.register_forward_pre_hook(hook)
        teacher.register_state_dict_pre_hook(hook)  # type: ignore[no-untyped-call]
        teacher.register_load_state_dict_pre_hook(hook)  # type: ignore[no-untyped-call]

    def _attach(
        self, optimizers: tuple[object, ...], schedules: Iterable[object], update: Callable[[], None]
    ) -> Attachment:
        self._check_detached("attach() must not be called again")
        for schedule in schedules:
            if schedule is not None and not callable(schedule):
                raise ConfigError(f"a schedule is a function of the number of updates, got {schedule!r}")
        self._attachment = Attachment(self.student, optimizers, update)
        return self._attachment

    def _check_detached(self, what: str) -> None:
        if self._attachment is not None and self._attachment.is_active:
            raise StateError(f"{what} while an attached optimizer makes the updates: detach() it first")
