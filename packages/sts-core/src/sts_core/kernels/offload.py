"""Teachers in the host's memory whose student is on a GPU: what an update reads travels, and the host computes."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from sts_core.kernels.interface import Kernel, Pair, Rule
from sts_core.kernels.reference import drawn_units

Bind = Callable[[Sequence[Pair]], list[Kernel]]


def travels(pair: Pair) -> bool:
    """Whether the student must be brought to teachers in the host's memory."""
    return pair.student.device.type != "cpu" and all(teacher.device.type == "cpu" for teacher in pair.teachers)


class OffloadKernel:
    """Brings the student's tensors into memory that is the host's, where kernels of the host update the teachers.

    Of a layer or module that is not drawn for any teacher nothing travels. From CUDA devices tensors travel to pinned
    memory in the order of the stream: the next step may overwrite them on the device at once. `update` waits for all
    of them together; with `deferred` it waits for those of the update before, and `finish` for the last.
    """

    def __init__(self, pairs: Sequence[Pair], bind: Bind, *, deferred: bool = False) -> None:
        self.pairs, self._bind, self._deferred = list(pairs), bind, deferred
        self._arriving = [pair._replace(student=_host_memory_like(pair.student)) for pair in pairs]
        self._kernels = bind(self._arriving)
        self._pending: tuple[Sequence[Rule], Tensor | None, list[torch.cuda.Event]] | None = None

    def supports(self, rule: Rule) -> bool:
        return all(kernel.supports(rule) for kernel in self._kernels)

    @torch.no_grad()
    def update(self, rules: Sequence[Rule], skip: Tensor | None = None) -> None:
        self.finish()
        numbers = _read_by(rules, [pair.name for pair in self.pairs])
        source, target = [self.pairs[n].student for n in numbers], [self._arriving[n].student for n in numbers]
        if source:
            torch._foreach_copy_(target, source, non_blocking=True)
        flag = None if skip is None else skip.to("cpu", non_blocking=True)
        self._pending = rules, flag, _events(source if skip is None else [*source, skip])
        if not self._deferred:
            self.finish()

    @torch.no_grad()
    def finish(self, now: Mapping[str, Pair] | None = None) -> None:
        """Wait for what travels and update the teachers, or those of the pairs `now` if their memory has moved."""
        if self._pending is None:
            return
        (rules, skip, events), self._pending = self._pending, None
        for event in events:
            event.synchronize()
        moved = [pair._replace(teachers=now[pair.name].teachers) for pair in self._arriving] if now else []
        for kernel in self._bind(moved) if now else self._kernels:
            kernel.update(rules, skip)


def _read_by(rules: Iterable[Rule], names: Sequence[str]) -> list[int]:
    """Which tensors of the student at least one of the rules reads."""
    read = [False] * len(names)
    for rule in rules:
        if rule.preserve_probability == 1.0:
            continue
        by_tensor = type(rule) is Rule and rule.granularity in ("layer", "module") and rule.preserve_probability > 0.0
        drawn = drawn_units(names, rule) if by_tensor else [True] * len(names)
        read = [a or b for a, b in zip(read, drawn, strict=True)]
    return [number for number, is_read in enumerate(read) if is_read]


def _host_memory_like(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)


def _events(tensors: Iterable[Tensor]) -> list[torch.cuda.Event]:
    """What tells that the copies have arrived; copies from devices other than CUDA's have arrived already."""
    return [torch.cuda.current_stream(device).record_event() for device in {t.device for t in tensors if t.is_cuda}]
