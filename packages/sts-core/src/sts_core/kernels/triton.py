"""The kernel for GPUs: one Triton launch updates all tensors of all teachers, the generator runs in its registers.

However many teachers a bank has, it takes at most four launches: one for p = 0, layers, modules and channels, and one
before it that draws their units; one for neurons; one for neurons at large p.

It needs no package beyond torch, whose CUDA builds bring Triton. Where Triton is missing or does not work the reference
kernel serves, and a notice says so once. Draws and layouts: `sts_core.kernels.triton_device`.
"""

import ctypes
import importlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from sts_core import masks
from sts_core.config import Granularity
from sts_core.distributed import on_device
from sts_core.errors import ConfigError
from sts_core.kernels.interface import Kernel, Pair, Rule, unit_name

_LARGEST = (1 << 31) - masks.BLOCK  # offsets in the kernels are int32
_STUDENT_TYPES = (torch.float32, torch.bfloat16, torch.float16)
Rows = Sequence[Sequence[int]]
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
        self._teachers = self._table([t.data_ptr() for column in zip(*teachers, strict=True) for t in column])
        self._num_weights = [s.numel() for s in students]
        self._num_rows = [s.shape[0] if s.dim() else 1 for s in students]
        self._first_weights = [pair.runs()[2] for pair in self.pairs]
        self._first_rows = [pair.first_row() for pair in self.pairs]
        self._row_sizes = [n // rows for n, rows in zip(self._num_weights, self._num_rows, strict=True)]
        self._skip = self._never = torch.zeros(1, device=self._device)
        self._made: dict[tuple[str, object], Any] = {}
        self._sent: dict[str, tuple[Rows, Tensor]] = {}

    def supports(self, rule: Rule) -> bool:
        return type(rule) is Rule

    def update(self, rules: Sequence[Rule], skip: Tensor | None = None) -> None:
        if not self.pairs:
            return
        self._skip = self._never if skip is None else skip
        with torch.cuda.device(self._students.get_device()):
            for (kind, step, seed), mine in _passes(rules).items():
                key: dict[str, Any] = {"step": step & (masks.WORD - 1), "seed": _signed(seed)}
                if kind == "units":
                    self._update_units(mine, key)
                else:
                    self._update_neurons(mine, key, sparse=kind == "sparse")

    def _update_units(self, rules: Mapping[int, Rule], key: dict[str, Any]) -> None:
        """p = 0, layers, modules and channels; a small launch of its own draws a flag for each unit."""
        drawn = tuple(dict.fromkeys(rule.granularity for rule in rules.values() if rule.preserve_probability > 0.0))
        table = self._table_of("units", _rows(rules, lambda rule: _unit_numbers(rule, drawn)))
        units = self._once(("units", drawn), lambda: self._units(drawn))
        size = len(table) * units["num_flags"]
        flags = self._once(("flags", size), lambda: torch.empty(size, dtype=torch.uint8, device=self._device))
        if drawn:
            entries = self._once(("entries", drawn), lambda: self._entries(drawn))
            own = {"flags": flags, "first_unit": units["first_unit"], "num_flags": units["num_flags"]}
            self._launch(self._code.draw_units, table, **entries, **own, **key)
        self._launch(self._code.update_units, table, **self._tensors(), **units, flags=flags, aligned=self._aligned)

    def _update_neurons(self, rules: Mapping[int, Rule], key: dict[str, Any], *, sparse: bool) -> None:
        if sparse:
            table = self._table_of("sparse", _rows(rules, lambda rule: (0, 0, 0)))
            gaps = [masks.gap_thresholds(rule.preserve_probability) for rule in rules.values()]
            own = {"tags": self._tags("neuron-gap"), "thresholds": self._table_of("gaps", gaps)}
            kernel, tile = self._code.update_neurons_sparse, self._code.BLOCK
        else:
            table = self._table_of("dense", _rows(rules, lambda rule: masks.pair_thresholds(rule.preserve_probability)))
            own = {"tags": self._tags("neuron"), "tie_tags": self._tags("neuron-tie")}
            kernel, tile = self._code.update_neurons_dense, self._code.TILE
        own |= self._layout()
        self._launch(kernel, table, **self._tensors(tile.value, self._first_weights), **own, **key)

    def _launch(self, kernel: Any, rules: Tensor, *, tiles: Tensor, **own: Any) -> None:
        """Run a kernel over all tiles, for one rule after the other."""
        grid, numbers = (len(tiles) * len(rules),), {"num_rules": len(rules), "num_tensors": len(self.pairs)}
        kernel[grid](tiles=tiles, rules=rules, **numbers, **own, **_OPTIONS)

    def _tensors(self, tile: int | None = None, firsts: Sequence[int] | None = None) -> dict[str, Any]:
        """What every update takes; the tiles are those of the memory or, with `firsts`, of the draws."""
        weights, begins = tile or self._code.TILE.value, firsts or [0] * len(self.pairs)
        key = "tiles", (weights, firsts is None)
        sizes, tiles = self._once(key, lambda: self._tiles(self._num_weights, weights, begins))
        tables = {"teachers": self._teachers, "students": self._students, "sizes": sizes, "tiles": tiles}
        return tables | {"skip": self._skip, "student_type": self._student_type}

    def _table_of(self, name: str, rows: Rows) -> Tensor:
        """The rows on the device, sent again when they are not those of the last update: m and p may have schedules."""
        if name not in self._sent or self._sent[name][0] != rows:
            self._sent[name] = rows, on_device(torch.tensor(rows), self._device)
        return self._sent[name][1]

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

    def _units(self, granularities: Sequence[Granularity]) -> dict[str, Any]:
        """Where the flags of a tensor begin, by granularity and tensor, the weights of a unit; the number of flags."""
        first = [0, *accumulate(self._per_tensor(granularities, self._num_rows, 1))]
        sizes = [n for g in granularities for n in (self._row_sizes if g == "channel" else self._num_weights)]
        tables = {"first_unit": self._table(first[:-1], torch.int32), "unit_sizes": self._table(sizes, torch.int32)}
        return tables | {"num_flags": first[-1]}

    def _entries(self, granularities: Sequence[Granularity]) -> dict[str, Tensor]:
        """Tags, first row, number and tiles of the units, by granularity and tensor."""
        first_rows = self._per_tensor(granularities, self._first_rows, 0)
        num_units = self._per_tensor(granularities, self._num_rows, 1)
        counts, tiles = self._tiles(num_units, self._code.UNITS.value, first_rows)
        tags = torch.cat([self._tags(granularity) for granularity in granularities])
        return {"tags": tags, "first_rows": self._table(first_rows, torch.int32), "counts": counts, "tiles": tiles}

    def _per_tensor(self, granularities: Sequence[Granularity], of_rows: Sequence[int], of_one: int) -> list[int]:
        """For each granularity and tensor: the tensor's own number if its rows are units, or that of a single unit."""
        return [n if g == "channel" else of_one for g in granularities for n in of_rows]

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


def _passes(rules: Sequence[Rule]) -> dict[tuple[str, int, int], dict[int, Rule]]:
    """The rules that move something by teacher, grouped by what one launch can apply: (kernel, step, seed)."""
    passes: dict[tuple[str, int, int], dict[int, Rule]] = {}
    for teacher, rule in enumerate(rules):
        p = rule.preserve_probability
        if p < 1.0:
            by_unit = p == 0.0 or rule.granularity != "neuron"
            kind = "units" if by_unit else "sparse" if masks.is_sparse(p) else "dense"
            passes.setdefault((kind, rule.step, rule.seed), {})[teacher] = rule
    return passes


def _rows(rules: Mapping[int, Rule], numbers: Callable[[Rule], Sequence[int]]) -> Rows:
    """A row for each rule, as the kernels read it: teacher, form of the formula, and three numbers of a kernel."""
    return [(teacher, *_lerp_form(rule.momentum), *numbers(rule)) for teacher, rule in rules.items()]


def _unit_numbers(rule: Rule, drawn: Sequence[Granularity]) -> tuple[int, int, int]:
    """Number of the granularity, -1 at p = 0, and from which word on a unit is updated."""
    p = rule.preserve_probability
    return (drawn.index(rule.granularity), masks.threshold(p, 32), 0) if p > 0.0 else (-1, 0, 0)


@lru_cache(maxsize=256)
def _lerp_form(momentum: float) -> tuple[int, int]:
    """Start and coefficient's bits of start + coefficient·(θˢ − θᵀ): torch.lerp starts from the nearer end, in float32.

    The starts are FROM_TEACHER, FROM_STUDENT and COPY of `triton_device`.
    """
    weight = ctypes.c_float(1.0 - momentum).value
    if momentum == 0.0:
        return 2, 0
    start, coefficient = (0, weight) if weight < 0.5 else (1, weight - 1.0)
    return start, ctypes.c_int32.from_buffer(ctypes.c_float(coefficient)).value
