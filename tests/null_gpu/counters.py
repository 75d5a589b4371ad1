"""What a process on null GPUs has launched, waited for, copied and sent: read inside that process."""

import ctypes
import os
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch

_LIBRARY = ctypes.CDLL(os.environ["NULLGPU_LIBRARY"])
_LIBRARY.nullgpu_name.restype = ctypes.c_char_p
_LIBRARY.nullgpu_count_of.restype = _LIBRARY.nullgpu_bytes_of.restype = ctypes.c_long
_LISTENER = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_long)
KINDS = tuple(_LIBRARY.nullgpu_name(number).decode() for number in range(_LIBRARY.nullgpu_num_kinds()))
SYNCS = ("stream_sync", "event_sync", "device_sync")
OPERATIONS = ("launch", "cublas", "cudnn", "cusolver", "triton", "memset", "copy_on_device")
PAGEABLE = ("to_device_pageable", "to_host_pageable")
COPIES = (*PAGEABLE, "to_device_pinned", "to_host_pinned")
COLLECTIVES = KINDS[KINDS.index("all_reduce") :]


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What a piece of a program asked of its GPU."""

    syncs: int
    """How often the host waited for the device."""
    operations: int
    """Kernels, library calls, fills and copies on the device: what is put into a stream."""
    copies: int
    """Copies between host and device."""
    copied_bytes: int
    pageable_copies: int
    """Of these, from or to memory that is not pinned, for which the host waits."""
    collectives: int
    collective_bytes: int
    """Of all ranks in a gather or scatter, of this one in a sum or broadcast."""
    allocations: int
    """Calls of cudaMalloc and cudaFree, past torch's cache: each may wait for the device."""
    peak_bytes: int
    """The most that torch's tensors took at once."""
    host_ms: float
    """The time of all host threads; copies that are real here are in it."""
    kinds: dict[str, int]
    """The number of events by kind."""


_answer: tuple[int | None, int] = (None, 8)


def answer(value: int | None, *, up_to_bytes: int = 8) -> None:
    """What the host gets when it reads a few bytes from the device; None: what happens to lie there.

    No kernel has written them, yet the host branches on them: 0 is a finite loss, False, and "none found".
    """
    global _answer
    _answer = value, up_to_bytes
    _LIBRARY.nullgpu_answer(-1 if value is None else value, ctypes.c_long(up_to_bytes))


@contextmanager
def answered(value: int | None, *, up_to_bytes: int = 8) -> Iterator[None]:
    """Inside, this answer; afterwards, the one before."""
    before = _answer
    answer(value, up_to_bytes=up_to_bytes)
    try:
        yield
    finally:
        answer(before[0], up_to_bytes=before[1])


@contextmanager
def counted(phases: dict[str, dict[str, Any]], name: str) -> Iterator[None]:
    """Put the counts of what is done inside into `phases` under a name."""
    torch.cuda.reset_peak_memory_stats()
    before, started = _totals(), time.process_time()
    yield
    host_ms = 1e3 * (time.process_time() - started)
    after = _totals()
    counts = {kind: after[kind][0] - before[kind][0] for kind in KINDS}
    sizes = {kind: after[kind][1] - before[kind][1] for kind in KINDS}
    phases[name] = asdict(_summary(counts, sizes, host_ms))


def _totals() -> dict[str, tuple[int, int]]:
    return {k: (_LIBRARY.nullgpu_count_of(i), _LIBRARY.nullgpu_bytes_of(i)) for i, k in enumerate(KINDS)}


def _summary(counts: dict[str, int], sizes: dict[str, int], host_ms: float) -> Counts:
    def total(values: dict[str, int], kinds: Sequence[str]) -> int:
        return sum(values[kind] for kind in kinds)

    return Counts(
        syncs=total(counts, SYNCS),
        operations=total(counts, OPERATIONS),
        copies=total(counts, COPIES),
        copied_bytes=total(sizes, COPIES),
        pageable_copies=total(counts, PAGEABLE),
        collectives=total(counts, COLLECTIVES),
        collective_bytes=total(sizes, COLLECTIVES),
        allocations=counts["malloc"] + counts["free"],
        peak_bytes=torch.cuda.max_memory_allocated(),
        host_ms=host_ms,
        kinds={kind: count for kind, count in counts.items() if count},
    )


@contextmanager
def origins(kinds: Sequence[str] = SYNCS, *, within: str = "sts_") -> Iterator[Counter[str]]:
    """Count events of some kinds by their place: kind, and the innermost line of our packages that led to it."""
    found: Counter[str] = Counter()

    def note(kind: bytes, detail: bytes, size: int) -> None:
        if kind.decode() in kinds:
            found[f"{kind.decode()} {_place(within)}"] += 1

    callback = _LISTENER(note)
    _LIBRARY.nullgpu_listen(callback)
    try:
        yield found
    finally:
        _LIBRARY.nullgpu_listen(_LISTENER(0))


def _place(within: str) -> str:
    ours = [frame for frame in traceback.extract_stack() if within in frame.filename]
    return f"{ours[-1].filename.rpartition('/')[2]}:{ours[-1].lineno}" if ours else "autograd"
