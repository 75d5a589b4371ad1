"""Checks for anyone's training code: does a training that is cut and resumed end as if it had not been cut?"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

Train = Callable[[Path, int], Mapping[str, Any]]
"""Trains in a folder up to a number of steps, resuming from what an earlier call left there; returns the state."""


def assert_resumes(train: Train, *, steps: int = 6, cuts: Iterable[int] | None = None) -> None:
    """Raise AssertionError unless training `steps` steps gives the same bits straight and cut at each of `cuts`.

        def train(folder, steps):
            ...                      # builds everything anew, resumes from `folder` if it holds a checkpoint
            return {"student": student.state_dict(), "teacher": teacher.state_dict()}

        assert_resumes(train)

    Without `cuts` a training is cut after each step but the last, and one of them after every step. The first call
    is repeated first: a training that differs from itself cannot be resumed to the bit.
    """
    straight = _train_in_a_new_folder(train, [steps])
    _check(straight, _train_in_a_new_folder(train, [steps]), "two trainings that were not cut")
    for cut in range(1, steps) if cuts is None else cuts:
        _check(straight, _train_in_a_new_folder(train, [cut, steps]), f"a training that was cut after step {cut}")
    if cuts is None:
        often = _train_in_a_new_folder(train, range(1, steps + 1))
        _check(straight, often, "a training that was cut after every step")


def _train_in_a_new_folder(train: Train, stops: Iterable[int]) -> dict[str, Any]:
    with TemporaryDirectory() as folder:
        state: Mapping[str, Any] = {}
        for stop in stops:
            state = train(Path(folder), stop)
        return dict(_flat(state))


def _flat(state: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in state.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value.detach().clone() if isinstance(value, Tensor) else value


def _check(expected: Mapping[str, Any], got: Mapping[str, Any], what: str) -> None:
    assert expected.keys() == got.keys(), (
        f"{what} must leave the same entries, got {sorted(expected.keys() ^ got.keys())}"
    )
    wrong = [name for name, value in expected.items() if not _same(value, got[name])]
    if wrong:
        first = wrong[0]
        values = (expected[first], got[first])
        gap = (
            f" by up to {_gap(*values):.3g}"
            if all(isinstance(v, Tensor) and v.is_floating_point() for v in values)
            else ""
        )
        raise AssertionError(
            f"{what} must end with the same bits, but {len(wrong)} of {len(expected)} entries differ: {first}{gap}"
        )


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    return bool(a == b)


def _gap(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).abs().max()) if a.shape == b.shape else float("inf")
