"""The compiled kernel for CPUs: one C file, compiled in the wheel or at first use, and loaded through ctypes.

It is optional. Where there is neither a library nor a compiler the reference kernel serves, and a notice says so once.
"""

import ctypes
import hashlib
import logging
import os
import platform
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sts_core import masks
from sts_core.errors import ConfigError
from sts_core.kernels import compilation
from sts_core.kernels.interface import Kernel, Pair, Rule, unit_name

_STREAMS = ("layer", "module", "channel", "neuron", "neuron-tie", "neuron-gap")
_KINDS = {"all": 0, "layer": 1, "module": 2, "channel": 3, "dense": 4, "sparse": 5}
_STUDENT_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_GUIDE_SHIFT = 22
_TILES_PER_THREAD = 64  # below a million weights a second thread costs more than it brings


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("student", ctypes.c_void_p),
        ("teachers", ctypes.POINTER(ctypes.c_void_p)),
        ("numel", ctypes.c_int64),
        ("row", ctypes.c_int64),
        ("channels", ctypes.c_int64),
        ("student_type", ctypes.c_int64),
        ("run", ctypes.c_int64),
        ("distance", ctypes.c_int64),
        ("first", ctypes.c_int64),
        ("first_row", ctypes.c_int64),
        ("tags", ctypes.c_uint64 * len(_STREAMS)),
    )


class _Rule(ctypes.Structure):
    _fields_ = (
        ("seed", ctypes.c_uint64),
        ("threshold", ctypes.c_uint64),
        ("step", ctypes.c_uint32),
        ("kind", ctypes.c_uint32),
        ("momentum", ctypes.c_float),
        ("pull", ctypes.c_float),
        ("high", ctypes.c_uint32 * 3),
        ("low", ctypes.c_uint32 * 3),
        ("gaps", ctypes.POINTER(ctypes.c_uint64)),
        ("guide", ctypes.POINTER(ctypes.c_uint32)),
    )


def claim(pairs: list[Pair], kernels: list[Kernel], *, required: bool) -> list[Pair]:
    """Append a kernel for the pairs it can take and return the others."""
    mine = [pair for pair in pairs if _can_take(pair)]
    if not mine:
        return pairs
    try:
        kernels.append(NativeKernel(mine))
    except OSError as error:
        if required:
            raise ConfigError(
                f"backend 'native' needs a C compiler, but {error}: install gcc or clang, or set CC"
            ) from error
        _notice_once(str(error))
        return pairs
    return [pair for pair in pairs if not _can_take(pair)]


def _can_take(pair: Pair) -> bool:
    tensors = (pair.student, *pair.teachers)
    if pair.student.numel() == 0 or any(t.device.type != "cpu" for t in tensors):
        return False
    if pair.student.dtype not in _STUDENT_TYPES or any(t.dtype != torch.float32 for t in pair.teachers):
        return False
    if all(t.is_contiguous() for t in tensors):
        return pair.runs()[0] > 0
    if pair.shard is not None:
        return False
    # A tile of channels_last weights lies scattered over its row, so a tile of it cannot be widened alone.
    return pair.student.dtype == torch.float32 and all(_is_channels_last(t) for t in tensors)


def _is_channels_last(tensor: Tensor) -> bool:
    return tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)


@lru_cache(maxsize=1)
def _notice_once(reason: str) -> None:
    logging.getLogger("sts_core").warning(
        "channel and neuron updates run in plain PyTorch, because %s; with a C compiler (gcc, clang or CC) they are "
        "faster, with the same result",
        reason,
    )


def _instruction_set() -> str:
    """The best that the processor has, or that ATEN_CPU_CAPABILITY allows torch."""
    return {"AVX2": "avx2", "AVX512": "avx512"}.get(torch.backends.cpu.get_cpu_capability(), "baseline")


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "sts-core"


@lru_cache(maxsize=1)
def library() -> Any:
    """The loaded kernel: from the wheel, or compiled on first use and kept in the user's cache folder."""
    name = _instruction_set()
    shipped = compilation.SOURCE.with_name(compilation.library_name(name))
    loaded = ctypes.CDLL(str(shipped if shipped.exists() else _compiled(name)))
    loaded.sts_update.restype = loaded.sts_call_for.restype = None
    return loaded


def _compiled(instruction_set: str) -> Path:
    """The library under a hash of its source and of how it is compiled."""
    recipe = [compilation.SOURCE.read_text(), *compilation.flags(instruction_set), platform.machine()]
    target = _cache_folder() / f"native-{hashlib.sha256(' '.join(recipe).encode()).hexdigest()[:16]}.so"
    try:
        return target if target.exists() else compilation.compile_library(instruction_set, target)
    except PermissionError:  # a read-only home: for this process only
        return compilation.compile_library(instruction_set, Path(tempfile.mkdtemp(prefix="sts-core-")) / target.name)


@lru_cache(maxsize=64)
def _gap_tables(probability: float) -> tuple[Any, Any]:
    """The thresholds p^g·2³² and, for each value of a word's upper ten bits, the smallest gap it can mean."""
    thresholds = masks.gap_thresholds(probability)
    largest = [((bucket + 1) << _GUIDE_SHIFT) - 1 for bucket in range(1 << (32 - _GUIDE_SHIFT))]
    guide, gap = [], masks.NUM_GAPS
    for word in largest:  # words grow, gaps shrink
        while gap and word >= thresholds[gap - 1]:
            gap -= 1
        guide.append(gap)
    return (ctypes.c_uint64 * len(thresholds))(*thresholds), (ctypes.c_uint32 * len(guide))(*guide)


@lru_cache(maxsize=256)
def _template(rule: Rule) -> _Rule:
    """Everything of a rule but its step, which the caller sets: thresholds and tables are worth keeping."""
    p = rule.preserve_probability
    filled = _Rule(seed=rule.seed, momentum=rule.momentum, pull=1.0 - rule.momentum)
    kind: str = rule.granularity
    if p == 0.0:
        kind = "all"
    elif kind == "neuron" and masks.is_sparse(p):
        kind = "sparse"
        gaps, guide = _gap_tables(p)
        filled.gaps = ctypes.cast(gaps, ctypes.POINTER(ctypes.c_uint64))
        filled.guide = ctypes.cast(guide, ctypes.POINTER(ctypes.c_uint32))
    elif kind == "neuron":
        kind = "dense"
        for index, value in enumerate(masks.pair_thresholds(p)):
            filled.high[index], filled.low[index] = value >> 32, value & (masks.WORD - 1)
    else:
        filled.threshold = masks.threshold(p, 32)
    filled.kind = _KINDS[kind]
    return filled


class NativeKernel:
    """The update of contiguous (or, for float32 students, channels_last) tensors on the CPU."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._update = library().sts_update
        self.pairs = list(pairs)  # keeps the memory that the table points to
        self._num_teachers = len(pairs[0].teachers)
        self._tables: dict[tuple[int, ...], tuple[Any, Any, int]] = {}

    def _table(self, active: tuple[int, ...]) -> tuple[Any, Any, int]:
        """The tensors as the kernel reads them, with the teachers that move in this update."""
        if active not in self._tables:
            rows = [_describe(pair, active) for pair in self.pairs]
            tiles = [-(-pair.student.numel() // masks.BLOCK) for pair in self.pairs]
            first = [0, *accumulate(tiles[:-1])]
            self._tables[active] = (
                (_Tensor * len(rows))(*rows),
                (ctypes.c_int64 * len(first))(*first),
                sum(tiles),
            )
        return self._tables[active]

    def supports(self, rule: Rule) -> bool:
        return type(rule) is Rule

    def update(self, rules: Sequence[Rule], skip: Tensor | None = None) -> None:
        active = tuple(k for k, rule in enumerate(rules) if rule.preserve_probability < 1.0)
        if not active or (skip is not None and bool(skip)):
            return
        tensors, first, num_tiles = self._table(active)
        filled = (_Rule * len(active))()
        for slot, k in enumerate(active):
            rule = rules[k]
            filled[slot] = _template(Rule(rule.momentum, rule.preserve_probability, rule.granularity, 0, rule.seed))
            filled[slot].step = rule.step & (masks.WORD - 1)

        def run(begin: int, end: int) -> None:
            count, teachers = ctypes.c_int64(len(first)), ctypes.c_int64(len(active))
            self._update(tensors, first, count, ctypes.c_int64(begin), ctypes.c_int64(end), filled, teachers)

        _run_parallel(run, num_tiles)


def _describe(pair: Pair, active: tuple[int, ...]) -> _Tensor:
    student = pair.student
    rows = student.shape[0] if student.dim() else 1
    run, distance, first = pair.runs()
    streams = [masks.stream_tag(s, unit_name("module", pair.name) if s == "module" else pair.name) for s in _STREAMS]
    return _Tensor(
        student=student.data_ptr(),
        teachers=(ctypes.c_void_p * len(active))(*(pair.teachers[k].data_ptr() for k in active)),
        numel=student.numel(),
        row=student.numel() // rows,
        channels=0 if student.is_contiguous() and pair.teachers[0].is_contiguous() else student.shape[1],
        student_type=_STUDENT_TYPES[student.dtype],
        run=run,
        distance=distance,
        first=first,
        first_row=pair.first_row(),
        tags=(ctypes.c_uint64 * len(_STREAMS))(*streams),
    )


@lru_cache(maxsize=1)
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Threads of this process; a forked child gets its own."""
    return ThreadPoolExecutor(threads, thread_name_prefix="sts-core")


def _run_parallel(run: Any, num_tiles: int) -> None:
    """Split the tiles over torch's number of threads; ctypes releases the interpreter lock."""
    threads = min(torch.get_num_threads(), num_tiles // _TILES_PER_THREAD)
    if threads < 2:
        run(0, num_tiles)
        return
    bounds = [num_tiles * k // threads for k in range(threads + 1)]
    pool = _pool(os.getpid(), torch.get_num_threads() - 1)
    others = [pool.submit(run, begin, end) for begin, end in pairwise(bounds[1:])]
    run(bounds[0], bounds[1])
    for other in others:
        other.result()
