"""The cache lines that an update touches, counted, and how long a loop over the same lines takes.

The loop knows the lines in advance, draws nothing and decides nothing: what it takes is what memory takes, in the
order and the pieces of this very update. It calls for lines some runs in advance, or leaves that to the processor.
"""

import ctypes
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sts_core import Smoother

WEIGHTS_PER_LINE = 16  # float32 in a cache line of 64 bytes
BYTES_PER_LINE = 3 * 64  # student and teacher are read, the teacher is written
SOURCE = """
#include <stdint.h>
typedef struct { float *teacher; const float *student; const int32_t *runs; int64_t num_runs, numel; } Part;
void touch(const Part *parts, int64_t num_parts, int64_t ahead) {
    for (const Part *x = parts; x < parts + num_parts; x++)
        for (int64_t k = 0; k < x->num_runs; k++) {
            if (ahead && k + ahead < x->num_runs) {
                int64_t next = 16 * (int64_t)x->runs[2 * (k + ahead)];
                __builtin_prefetch(x->teacher + next, 1, 3), __builtin_prefetch(x->student + next, 0, 3);
            }
            int64_t begin = 16 * (int64_t)x->runs[2 * k], end = 16 * (int64_t)x->runs[2 * k + 1];
            if (end > x->numel) end = x->numel;
            for (int64_t i = begin; i < end; i++) x->teacher[i] += x->student[i];
        }
}
"""


class _Part(ctypes.Structure):
    _fields_ = (
        ("teacher", ctypes.c_void_p),
        ("student", ctypes.c_void_p),
        ("runs", ctypes.c_void_p),
        ("num_runs", ctypes.c_int64),
        ("numel", ctypes.c_int64),
    )


class Lines:
    """The lines that one update of a smoother moves; calling it adds the student to the teacher there."""

    def __init__(self, smoother: Smoother) -> None:
        students, teachers = list(smoother.student.parameters()), list(smoother.teacher.parameters())
        before = [teacher.detach().clone() for teacher in teachers]
        with torch.no_grad():
            for student, teacher in zip(students, teachers, strict=True):
                teacher.copy_(student + 1)  # whatever is drawn moves
            kept = [teacher.clone() for teacher in teachers]
            smoother.update()
            touched = [_touched(teacher, old) for teacher, old in zip(teachers, kept, strict=True)]
            for teacher, old in zip(teachers, before, strict=True):
                teacher.copy_(old)
        self.num_lines = sum(int(lines.sum()) for lines in touched)
        self._runs = [_runs(lines) for lines in touched]
        self._parts = (_Part * len(students))(
            *(
                _Part(teacher.data_ptr(), student.data_ptr(), runs.data_ptr(), len(runs), student.numel())
                for student, teacher, runs in zip(students, teachers, self._runs, strict=True)
            )
        )
        self._touch = _compiled()

    def __call__(self, ahead: int) -> None:
        self._touch(self._parts, ctypes.c_int64(len(self._parts)), ctypes.c_int64(ahead))


def _touched(teacher: Tensor, before: Tensor) -> Tensor:
    """bool [lines]: where a weight moved, in the order of memory."""
    moved = (teacher != before).as_strided((teacher.numel(),), (1,))
    padded = moved.new_zeros(-(-len(moved) // WEIGHTS_PER_LINE) * WEIGHTS_PER_LINE)
    padded[: len(moved)] = moved
    return padded.view(-1, WEIGHTS_PER_LINE).any(dim=1)


def _runs(lines: Tensor) -> Tensor:
    """[runs, 2]: first line of each and the one after its last."""
    edges = torch.diff(lines.int(), prepend=torch.zeros(1), append=torch.zeros(1)).int()
    return torch.stack([(edges == 1).nonzero()[:, 0], (edges == -1).nonzero()[:, 0]], dim=1).int().contiguous()


def _compiled() -> Callable[..., Any]:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "touch.c", Path(folder) / "touch.so"
        source.write_text(SOURCE)
        subprocess.run(["cc", "-O3", "-march=native", "-shared", "-fPIC", source, "-o", target], check=True)
        loaded = ctypes.CDLL(str(target))
    loaded.touch.restype = None
    return loaded.touch
