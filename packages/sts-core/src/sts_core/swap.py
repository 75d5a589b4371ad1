"""A student that computes with its teacher's weights for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from sts_core.errors import SwapError
from sts_core.pairing import WIDE, Selection, pair, unwrap
from sts_core.sharded.blocks import reshard

_swapped: set[int] = set()  # by id, since whoever swaps holds the module


@contextmanager
def swapped(student: nn.Module, teacher: nn.Module, selection: Selection) -> Iterator[nn.Module]:
    """Lend the student the teacher's weights and buffers; all that was done to them inside is undone at the end.

    Values are exchanged, not tensors, so wrappers, compiled graphs and optimizers keep what they refer to. The
    student's own values wait in a copy, since a bfloat16 student could not give a float32 teacher its bits back.
    """
    check_not_swapped(student, "swapped() must not begin")
    pairs = pair(student, teacher, "copy", selection, dtypes=(*WIDE, torch.bfloat16))
    lent = [(p.student, p.teacher) for p in (*pairs.smoothed, *pairs.copied)]
    own = [(tensor, tensor.detach().clone()) for tensor, _ in lent]
    _swapped.add(id(unwrap(student)))
    try:
        _copy(lent)
        versions = [p.student._version for p in pairs.smoothed]
        yield student
        if versions != [p.student._version for p in pairs.smoothed]:
            raise SwapError("the student's weights must not change inside swapped(): what was trained there is lost")
    finally:
        reshard(student)
        _copy(own)
        _swapped.discard(id(unwrap(student)))


def check_not_swapped(student: nn.Module, what: str) -> None:
    """Raise where something must not happen to a student that has its teacher's weights."""
    if _swapped and id(unwrap(student)) in _swapped:
        raise SwapError(f"{what} inside swapped(), where the student has its teacher's weights: leave the block first")


@torch.no_grad()
def _copy(values: list[tuple[Tensor, Tensor]]) -> None:
    for tensor, value in values:
        tensor.copy_(value)
