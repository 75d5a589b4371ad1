"""Which student tensor belongs to which teacher tensor: by name, through wrappers, checked before anything moves."""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from operator import is_
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sts_core.config import Buffers
from sts_core.errors import PairingError
from sts_core.sharded.blocks import check_alike, fsdp_modules, is_sharded, local, reshard
from sts_core.sharded.fsdp import copy_sharded

WIDE = (torch.float32, torch.float64, torch.complex64, torch.complex128)
"""What a teacher is kept in, unless its steps are rounded by chance."""


class NamedPair(NamedTuple):
    """Two tensors of one name and where they live, so that a later replacement is noticed."""

    name: str
    student: Tensor
    teacher: Tensor


class Pairs(NamedTuple):
    """Tensors that follow the update rule, and buffers that are copied as they are."""

    smoothed: list[NamedPair]
    copied: list[NamedPair]


def unwrap(module: nn.Module) -> nn.Module:
    """The module inside DistributedDataParallel, DataParallel and torch.compile wrappers."""
    while True:
        inner = getattr(module, "_orig_mod", None)
        if inner is None and isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = module.module
        if not isinstance(inner, nn.Module):
            return module
        module = inner


class Selection(NamedTuple):
    """Which parameters a teacher has of its own; the others are the student's."""

    names: str | Sequence[str] = "*"
    """Patterns such as "*.lora_*", of which a parameter's name must match one."""
    exclude: str | Sequence[str] = ()
    """Patterns of which it must match none."""
    trainable_only: bool = False
    """Only what requires gradients in the student."""

    def of(self, named: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
        """The parameters with chosen names; whether they require gradients is asked of the student's alone."""
        return {
            name: tensor for name, tensor in named if _matches(name, self.names) and not _matches(name, self.exclude)
        }

    def of_student(self, student: nn.Module) -> dict[str, Tensor]:
        """The student's chosen parameters, a tied one under each of its names."""
        chosen = self.of(unwrap(student).named_parameters(remove_duplicate=False))
        return {name: tensor for name, tensor in chosen.items() if tensor.requires_grad or not self.trainable_only}


EVERYTHING = Selection()


def _matches(name: str, patterns: str | Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in ([patterns] if isinstance(patterns, str) else patterns))


@torch.inference_mode(False)
def make_teacher(
    student: nn.Module,
    *,
    names: str | Sequence[str] = "*",
    exclude: str | Sequence[str] = (),
    trainable_only: bool = False,
    device: torch.device | str | None = None,
) -> nn.Module:
    """A frozen copy of the student in float32, whatever the student trains in.

    In bfloat16 a teacher would hardly ever move: at m = 0.999 the step is below its precision. Parameters that are not
    chosen (by patterns such as "*.lora_*", or because they do not require gradients) are shared with the student, not
    copied: give the Smoother the same choice. On `device`, such as "cpu", the teacher takes no memory of the student's.
    """
    module = unwrap(student)
    if any(is_lazy(tensor) for tensor in module.parameters()):
        raise PairingError("a lazy module has no weights to copy yet: run a batch through the student first")
    reshard(module)
    own = {id(tensor) for tensor in Selection(names, exclude, trainable_only).of_student(module).values()}
    shared = {id(parameter): parameter for parameter in module.parameters() if id(parameter) not in own}
    teacher = _copied(module, shared, None if device is None else torch.device(device))
    for parameter in teacher.parameters():
        if id(parameter) not in shared:
            if parameter.is_floating_point() and parameter.dtype != torch.float32:
                parameter.data = parameter.data.float()
            parameter.requires_grad_(False)
            parameter.grad = None
    _widen_buffers(teacher)
    return teacher


def _copied(module: nn.Module, shared: Mapping[int, Tensor], device: torch.device | None) -> nn.Module:
    brought = _brought(module, shared, device)
    if not fsdp_modules(module):
        return copy.deepcopy(module, dict(shared) | brought)
    if shared:
        raise PairingError("a teacher cannot share parameters with a student that FSDP has sharded: choose all of them")
    return copy_sharded(module)


def _brought(module: nn.Module, shared: Mapping[int, Tensor], device: torch.device | None) -> dict[int, Tensor]:
    """Copies on another device by the id of what they are copies of, made there at once."""
    if device is None:
        return {}
    if any(map(is_sharded, module.parameters())):
        raise PairingError(f"a teacher in shards must stay where its student is, got device {device}: leave it out")
    copies: dict[int, Tensor] = {
        id(p): nn.Parameter(p.detach().to(device, copy=True), requires_grad=False)
        for p in module.parameters()
        if id(p) not in shared
    }
    return copies | {id(b): b.to(device, copy=True) for b in module.buffers()}


def _widen_buffers(module: nn.Module) -> None:
    for owner in module.modules():
        for name, buffer in owner._buffers.items():
            if buffer is not None and buffer.is_floating_point():
                owner._buffers[name] = buffer.float()


def pair(
    student: nn.Module,
    teacher: nn.Module,
    buffers: Buffers,
    selection: Selection = EVERYTHING,
    *,
    dtypes: Sequence[torch.dtype] = WIDE,
) -> Pairs:
    """All tensors of the teacher with the student's of the same name, or a PairingError that names what differs."""
    student, teacher = unwrap(student), unwrap(teacher)
    if student is teacher:
        raise PairingError(
            "student and teacher must be two modules, got one twice: make the teacher by make_teacher(student)"
        )
    reshard(student)
    reshard(teacher)
    parameters = _pair_parameters(student, teacher, selection)
    # An integer has no average: a quantized base is the student's, as counters are.
    smoothed = [named for named in parameters if _has_average(named.teacher)]
    copied = [named for named in parameters if not _has_average(named.teacher)]
    if buffers != "keep":
        for named in _pair_buffers(student, teacher):
            averaged = buffers == "smooth" and named.teacher.is_floating_point()
            (smoothed if averaged else copied).append(named)
    _check_separate(smoothed + copied)
    _check_precision(smoothed, dtypes)
    return Pairs(smoothed, copied)


def _has_average(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _pair_parameters(student: nn.Module, teacher: nn.Module, selection: Selection) -> list[NamedPair]:
    """One pair for each distinct teacher parameter; a tied parameter counts once, under its first name."""
    everything = dict(student.named_parameters(remove_duplicate=False))
    sources = selection.of_student(student)
    targets = selection.of(teacher.named_parameters(remove_duplicate=False))
    targets = {name: tensor for name, tensor in targets.items() if name in sources or name not in everything}
    if everything and not sources:
        raise PairingError(f"a teacher needs parameters to follow, but {selection} leaves none of the student's")
    _check_names("parameter", sources, targets)
    _check_ties(sources, targets)
    pairs = [NamedPair(name, sources[name], tensor) for name, tensor in teacher.named_parameters() if name in targets]
    _check_shapes(pairs)
    return pairs


def _pair_buffers(student: nn.Module, teacher: nn.Module) -> list[NamedPair]:
    sources = dict(student.named_buffers(remove_duplicate=False))
    _check_names("buffer", sources, dict(teacher.named_buffers(remove_duplicate=False)))
    pairs = [NamedPair(name, sources[name], tensor) for name, tensor in teacher.named_buffers()]
    _check_shapes(pairs)
    return pairs


def _check_names(kind: str, sources: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> None:
    missing = [name for name in targets if name not in sources]
    if missing:
        raise PairingError(
            f"every {kind} of the teacher needs one of the same name in the student, which lacks {_some(missing)}: "
            f"make the teacher by make_teacher(student), or bind the part of the student that it copies"
        )
    if kind != "parameter" or not targets:
        return
    # The student may have whole modules more (a predictor), but a module that both have must be complete.
    owners = {name.rpartition(".")[0] for name in targets}
    extra = [name for name in sources if name not in targets and name.rpartition(".")[0] in owners]
    if extra:
        raise PairingError(
            f"a module that student and teacher share must have the same parameters in both, but the teacher lacks "
            f"{_some(extra)}: make the teacher anew by make_teacher(student)"
        )


def _check_ties(sources: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> None:
    first: dict[int, str] = {}
    for name, tensor in targets.items():
        other = first.setdefault(id(tensor), name)
        if sources[other] is not sources[name]:
            raise PairingError(
                f"the teacher ties {other!r} to {name!r} but the student does not: one tensor cannot follow two, "
                f"so tie them in the student or make the teacher by make_teacher(student)"
            )


def _check_shapes(pairs: Sequence[NamedPair]) -> None:
    for name, student, teacher in pairs:
        if student.shape != teacher.shape:
            raise PairingError(
                f"tensors of one name must have one shape, but {name!r} is {tuple(student.shape)} in the student and "
                f"{tuple(teacher.shape)} in the teacher: make the teacher by make_teacher(student)"
            )
        check_alike(name, student, teacher)


def _check_precision(pairs: Sequence[NamedPair], dtypes: Sequence[torch.dtype]) -> None:
    for name, _, teacher in pairs:
        if teacher.dtype not in dtypes:
            raise PairingError(
                f"the teacher must be float32, but its {name!r} is {str(teacher.dtype).removeprefix('torch.')}, in "
                f"which small steps round to nothing: call teacher.float() and run its forward pass under autocast, or "
                f"round a bfloat16 teacher by chance (stochastic_rounding=True) to halve its memory for some noise"
            )


def _check_separate(pairs: Sequence[NamedPair]) -> None:
    for name, student, teacher in pairs:
        mine, theirs = local(student), local(teacher)
        if theirs.is_meta or mine.is_meta:
            raise PairingError(f"{name!r} is on the meta device and has no values: load weights before the pairing")
        if theirs.numel() and mine.data_ptr() == theirs.data_ptr() and mine.device == theirs.device:
            raise PairingError(
                f"student and teacher must not share memory, but {name!r} is one tensor in both: "
                f"make the teacher by make_teacher(student), with the same choice of parameters"
            )


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


class Watch:
    """Remembers which tensors and submodules a module had and compares by identity, without walking names."""

    def __init__(self, role: str, module: nn.Module) -> None:
        modules = _walk(module)
        self._role = role
        self._fsdp_modules = fsdp_modules(module)
        self._held = _Held([held for m in modules for held in (m._parameters, m._modules)])
        self._buffers = _Held([m._buffers for m in modules])

    def check(self) -> None:
        """Raise if a parameter or submodule was added, removed or replaced since the pairing."""
        for part in self._fsdp_modules:
            part.reshard()
        if not self._held.is_unchanged() and (key := self._held.replaced_key() or self._held.added_key()):
            raise PairingError(
                f"the {self._role}'s parameters must stay those that were paired, but {key!r} was added, removed or "
                f"replaced: build the Smoother after the last change, and carry on with "
                f"load_state_dict(old.state_dict())"
            )

    def reads(self) -> Iterator[object]:
        """What the comparisons look at."""
        for held in (self._held, self._buffers):
            yield from chain(held.dicts, *map(dict.values, held.dicts))

    def has_other_buffers(self) -> bool:
        """Whether a buffer is another tensor than it was: `.to()` makes new ones, and modules assign them.

        One more that a module made for itself, such as a table of positions, is its own.
        """
        return not self._buffers.is_unchanged() and self._buffers.replaced_key() is not None


class _Held:
    """What a module's dicts hold. Most updates find it unchanged, so that answer is made to cost little."""

    def __init__(self, dicts: Sequence[dict[str, Any]]) -> None:
        self._empty = [held for held in dicts if not held]
        self._filled = [held for held in dicts if held]
        self._before = [dict(held) for held in dicts]
        self.dicts = dicts
        self._values = [*chain.from_iterable(map(dict.values, self._filled)), self]

    def is_unchanged(self) -> bool:
        """Whether all are the same objects in the same order; the one at the end is nobody else's."""
        values = chain(chain.from_iterable(map(dict.values, self._filled)), (self,))
        return not any(self._empty) and all(map(is_, values, self._values))

    def replaced_key(self) -> str | None:
        """The first that is another object or missing, in whatever order they are."""
        both = zip(self.dicts, self._before, strict=True)
        return next((key for now, old in both for key in old if key not in now or now[key] is not old[key]), None)

    def added_key(self) -> str | None:
        """The first that was not there."""
        both = zip(self.dicts, self._before, strict=True)
        return next((key for now, old in both for key in now if key not in old), None)


def _walk(module: nn.Module) -> list[nn.Module]:
    return list(unwrap(module).modules())


def numbers(tensor: Tensor) -> Tensor:
    """Weights as real numbers, in their own memory: of a complex one each part is a weight."""
    return torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()


def addresses(tensors: list[Tensor]) -> list[int]:
    """Where the tensors' data lies: `.to()`, `.data =` and assigning loads move it without replacing the tensor."""
    return list(map(Tensor.data_ptr, tensors))
