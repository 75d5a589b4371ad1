"""What the checks before an update will read, called for at once.

The checks find a few thousand small objects where a training step has left none of them in the caches: waiting for one
after the other takes several times as long as comparing them.
"""

import ctypes
from collections.abc import Iterable

from torch import Tensor

from sts_core.kernels import native

_LINE = 64
_ENTRIES = 32  # where CPython's dict keeps the address of its table; a wrong guess costs time, never a result


class Foresight:
    """The cache lines of objects that are compared and of tensors whose memory is looked up, as CPython has them."""

    def __init__(self, objects: Iterable[object], tensors: Iterable[Tensor]) -> None:
        found = [*map(_of_object, objects), *map(_of_tensor, tensors)]
        lines = sorted({address // _LINE * _LINE for addresses in found for address in addresses})
        self._lines = (ctypes.c_size_t * len(lines))(*lines)
        self._count = ctypes.c_int64(len(lines))
        self._call = native.library().sts_call_for

    def call(self) -> None:
        """Return at once; the memory arrives while the caller continues."""
        self._call(self._lines, self._count)


def _of_object(item: object) -> list[int]:
    if not isinstance(item, dict) or not item:
        return [id(item) - 16, id(item) + _ENTRIES]
    return [id(item) - 16, id(item) + _ENTRIES, *_after(ctypes.c_size_t.from_address(id(item) + _ENTRIES).value, 3)]


def _of_tensor(tensor: Tensor) -> list[int]:
    return [id(tensor), *_after(tensor._cdata, 3), *_after(tensor.untyped_storage()._cdata, 2)]


def _after(begin: int, num_lines: int) -> list[int]:
    return [begin + _LINE * k for k in range(num_lines)]
