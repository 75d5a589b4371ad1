"""The kernel for GPUs: one Triton launch updates all tensors of a teacher, the generator runs in its registers.

It needs no package beyond torch, whose CUDA builds bring Triton. Where Triton is missing or does not work the reference
kernel serves, and a notice says so once. Draws and layouts: `sts_core.kernels.triton_device`.
"""

import ctypes
import importlib
import logging
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from sts_core import masks
from sts_core.config import Granularity
from sts_core.errors import ConfigError
from sts_core.kernels.interface import Kernel, Pair, Rule, unit_name

_LARGEST = (1 << 31) - masks.BLOCK  # offsets in the kernels are int32
_STUDENT_TYPES = (torch.float32, torch.bfloat16, torch.float16)
_OPTIONS = {"enable_fp_fusion": False}  # the one fma is written out, so that values round alike on every version


def claim(pairs: list[Pair], kernels: list[Kernel], *, required: bool) -> list[Pair]:
    """Append kernels for the pairs they can take, one per device and student dtype, and return the others."""
    device_type = "cpu" if required and _interpreted() else "cuda"
    groups: dict[tuple[torch.device, torch.dtype], list[Pair]] = {}
    rest: list[Pair] = []
    for pair in pairs:
        mine = groups.setdefault((pair.student.device, pair.student.dtype), []) if _fits(pair, device_type) else rest
        mine.append(pair)
    if groups and (problem := _problem(str(next(iter(groups))[0]))):
        if not required:
            _notice_once(problem)
            return pairs
        raise ConfigError(f"backend 'triton' needs a working Triton, but {problem}: repair it or use backend 'auto'")
    if pairs and required and not groups:
        devices = sorted({pair.student.device.type for pair in pairs})
        raise ConfigError(
            f"backend 'triton' needs float32 teachers and their student on one CUDA device, got tensors on "
            f"{', '.join(devices)} that do not qualify: move both models to the GPU or use backend 'auto'"
        )
    kernels.extend(TritonKernel(group) for group in groups.values())
    return rest


def _interpreted() -> bool:
    """Whether Triton runs in its interpreter, which computes on the CPU what a GPU would."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _fits(pair: Pair, device_type: str) -> bool:
    student = pair.student
    if student.device.type != device_type or student.dtype not in _STUDENT_TYPES:
        return False
    run, _, first = pair.runs()
    if run != student.numel() or first + run > _LARGEST or (pair.shard is not None and not student.is_contiguous()):
        return False
    layout = _channels_innermost(student)
    return layout is not None and all(
        teacher.device == student.device and teacher.dtype == torch.float32 and _channels_innermost(teacher) == layout
        for teacher in pair.teachers
    )


def _channels_innermost(tensor: Tensor) -> int | None:
    """The extent of dim 1 where it is innermost in memory (channels_last), 1 for row-major, None for anything else."""
    if tensor.is_contiguous():
        return 1
    if tensor.dim() > 2 and tensor.movedim(1, -1).is_contiguous():
        return tensor.shape[1]
    return None


@lru_cache(maxsize=16)
def _problem(device: str) -> str:
    """Why Triton cannot be used on a device, found by a trial update of four weights; "" when it can."""
    student, teacher = torch.full((4,), 3.0, device=device), torch.ones(4, device=device)
    try:
        TritonKernel([Pair("trial", student, (teacher,))]).update([Rule(0.5, 0.0, "layer", 0, 0)])
        result = teacher.tolist()
    except Exception as error:  # a missing package, C compiler or driver: each has its own class
        return f"it fails on {device} with {type(error).__name__} ({str(error).strip()[:300]})"
    return "" if result == [2.0] * 4 else f"on {device} it averages 1 and 3 to {result}"


@lru_cache(maxsize=1)
def _notice_once(problem: str) -> None:
    logging.getLogger("sts_core").warning(
        "GPU updates run in plain PyTorch, because Triton does not work: %s; with it they are faster, with the same "
        "result",
        problem,
    )


class TritonKernel:
    """The update of tensors on one device whose students have one dtype."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._code: Any = importlib.import_module("sts_core.kernels.triton_device")
        self.pairs = [pair for pair in pairs if pair.student.numel()]  # also keeps what the tables point to
        self._device, dtype = pairs[0].student.device, pairs[0].student.dtype
        self._student_type = getattr(self._code.tl, str(dtype).removeprefix("torch."))
        self._aligned = all(t.data_ptr() % 16 == 0 for pair in self.pairs for t in (pair.student, *pair.teachers))
        students, teachers = [p.student for p in self.pairs], [p.teachers for p in self.pairs]
        self._students = self._table([s.data_ptr() for s in students])
        self._teachers = [self._table([t.data_ptr() for t in column]) for column in zip(*teachers, strict=True)]
        self._num_weights = [s.numel() for s in students]
        self._num_rows = [s.shape[0] if s.dim() else 1 for s in students]
        self._first_weights = [pair.runs()[2] for pair in self.pairs]
        self._first_rows = [pair.first_row() for pair in self.pairs]
        self._row_sizes = [n // rows for n, rows in zip(self._num_weights, self._num_rows, strict=True)]
        self._skip = self._never = torch.zeros(1, device=self._device)
        self._made: dict[tuple[str, object], Any] = {}
        self._gaps: tuple[float, Tensor] | None = None

    def supports(self, rule: Rule) -> bool:
        return type(rule) is Rule

    def update(self, rules: Sequence[Rule], skip: Tensor | None = None) -> None:
        if not self.pairs:
            return
        self._skip = self._never if skip is None else skip
        with torch.cuda.device(self._students.get_device()):
            for teacher, rule in zip(self._teachers, rules, strict=True):
                self._update_teacher(teacher, rule)

    def _update_teacher(self, teacher: Tensor, rule: Rule) -> None:
        p, code = rule.preserve_probability, self._code
        own: dict[str, Any]
        if p == 0.0:
            self._launch(code.update_all, teacher, rule, aligned=self._aligned)
        elif p < 1.0 and rule.granularity != "neuron":
            self._launch(code.update_units, teacher, rule, **self._drawn_units(rule), aligned=self._aligned)
        elif p < 1.0 and masks.is_sparse(p):
            own = {"tags": self._tags("neuron-gap"), "thresholds": self._gap_thresholds(p)}
            self._launch(code.update_neurons_sparse, teacher, rule, code.BLOCK, **own, **self._layout(), **_key(rule))
        elif p < 1.0:
            own = dict(zip(("both", "one", "none"), masks.pair_thresholds(p), strict=True))
            own |= {"tags": self._tags("neuron"), "tie_tags": self._tags("neuron-tie")}
            self._launch(code.update_neurons_dense, teacher, rule, **own, **self._layout(), **_key(rule))

    def _launch(self, kernel: Any, teacher: Tensor, rule: Rule, tile: Any = None, **own: Any) -> None:
        """Run a kernel over all tiles of all tensors, with what every update takes and with its own arguments."""
        weights = (tile or self._code.TILE).value
        firsts = self._first_weights if "firsts" in own else [0] * len(self.pairs)  # tiles of the draws, or of memory
        key = "tiles", (weights, "firsts" in own)
        sizes, tiles = self._once(key, lambda: self._tiles(self._num_weights, weights, firsts))
        base, coefficient = _lerp_form(rule.momentum)
        own |= {"student_type": self._student_type, "base": base} | _OPTIONS
        kernel[(len(tiles),)](teacher, self._students, sizes, tiles, self._skip, coefficient, **own)

    def _drawn_units(self, rule: Rule) -> dict[str, Tensor]:
        """Draw a flag for each unit, in a small launch of its own, and return what `update_units` reads of it."""
        kind = rule.granularity
        units, first_rows, counts, tiles = self._once(("units", kind), lambda: self._units(kind))
        threshold = masks.threshold(rule.preserve_probability, 32)
        self._code.draw_units[(len(tiles),)](
            units["flags"],
            counts,
            tiles,
            units["first_unit"],
            first_rows,
            self._tags(kind),
            threshold,
            **_key(rule),
            **_OPTIONS,
        )
        return units  # type: ignore[no-any-return]

    def _gap_thresholds(self, probability: float) -> Tensor:
        """Only the last table is kept: p may follow a schedule."""
        if self._gaps is None or self._gaps[0] != probability:
            self._gaps = probability, self._table(masks.gap_thresholds(probability))
        return self._gaps[1]

    def _once(self, key: tuple[str, object], make: Callable[[], Any]) -> Any:
        """Tables are made when they are first needed and stay on the device for as long as the binding lives."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def _table(self, values: Sequence[int], dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self._device)

    def _tags(self, stream: str) -> Tensor:
        """The stream tag of each tensor, as two's complement."""

        def make() -> Tensor:
            names = [unit_name("module", p.name) if stream == "module" else p.name for p in self.pairs]
            return self._table([_signed(masks.stream_tag(stream, name)) for name in names])

        return self._once(("tags", stream), make)  # type: ignore[no-any-return]

    def _layout(self) -> dict[str, Tensor]:
        """What maps a row-major index to memory: the weights of a row and the extent of dim 1 where it is innermost."""

        def make() -> dict[str, Tensor]:
            channels = [_channels_innermost(pair.student) or 1 for pair in self.pairs]
            columns = {"rows": self._row_sizes, "channels": channels, "firsts": self._first_weights}
            return {name: self._table(column, torch.int32) for name, column in columns.items()}

        return self._once(("layout", None), make)  # type: ignore[no-any-return]

    def _units(self, granularity: Granularity) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor]:
        """Flags of all units, where those of a tensor begin, the weights of a unit; first, number, tiles of units."""
        by_row = granularity == "channel"
        counts = self._num_rows if by_row else [1] * len(self.pairs)
        first_rows = self._first_rows if by_row else [0] * len(self.pairs)
        first = [0, *accumulate(counts)]
        units = {
            "flags": torch.empty(first[-1], dtype=torch.uint8, device=self._device),
            "first_unit": self._table(first[:-1], torch.int32),
            "unit_sizes": self._table(self._row_sizes if by_row else self._num_weights, torch.int32),
        }
        return units, self._table(first_rows, torch.int32), *self._tiles(counts, self._code.UNITS.value, first_rows)

    def _tiles(self, sizes: Sequence[int], tile: int, firsts: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The sizes, and a row (tensor, index of the tile in it) for each tile that the tensors are cut into.

        Of a block of a larger tensor these are the whole tensor's tiles from the one with its weight `first`.
        """
        begin = torch.tensor([first // tile for first in firsts])
        counts = torch.tensor([-(-(first + size) // tile) for first, size in zip(firsts, sizes, strict=True)]) - begin
        tensor = torch.repeat_interleave(counts)
        index = torch.arange(len(tensor)) - (counts.cumsum(0) - counts - begin)[tensor]
        return self._table(sizes, torch.int32), torch.stack([tensor, index], 1).to(self._device, torch.int32)


def _signed(value: int) -> int:
    """64 bits as two's complement, the form that a table of int64 and Triton's scalars take."""
    return ctypes.c_int64(value).value


def _key(rule: Rule) -> dict[str, int]:
    """The part of the generator's key and counter that an update fixes."""
    return {"step": rule.step & (masks.WORD - 1), "seed": _signed(rule.seed)}


def _lerp_form(momentum: float) -> tuple[str, float]:
    """Base and coefficient of base + coefficient·(θˢ − θᵀ): torch.lerp starts from the nearer end, in float32."""
    weight = ctypes.c_float(1.0 - momentum).value
    if momentum == 0.0:
        return "copy", weight
    return ("teacher", weight) if weight < 0.5 else ("student", weight - 1.0)
