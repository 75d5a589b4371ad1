"""What can be told of an average by looking at it."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from sts_core.doctor.formats import Found, find_pairs
from sts_core.errors import CheckpointError

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class Finding(NamedTuple):
    """One sentence, and whether it says that something is wrong."""

    text: str
    wrong: bool = False

    def __str__(self) -> str:
        return f"{'WRONG' if self.wrong else 'ok   '}  {self.text}"


def examine(checkpoint: str | Path, later: str | Path | None = None, *, steps: int | None = None) -> list[Finding]:
    """What a checkpoint says about its averages; `later`, one of the same run, says how they move.

    Files are read without running code. `steps` are the optimizer steps between the two, if they do not say it.
    """
    pairs = find_pairs(checkpoint)
    findings = [finding for pair in pairs for finding in _look(pair)]
    if later is not None:
        after = {(pair.student_name, pair.average_name): pair for pair in find_pairs(later)}
        for pair in pairs:
            other = after.get((pair.student_name, pair.average_name))
            if other is None:
                names = f"{pair.average_name} beside {pair.student_name}"
                raise CheckpointError(f"{later} has no {names}, unlike {checkpoint}")
            findings.extend(_compare(pair, other, steps))
    return findings


def _look(pair: Found) -> list[Finding]:
    named = {name: (pair.student[name], tensor) for name, tensor in pair.average.items() if name in pair.student}
    common = {name: both for name, both in named.items() if both[0].shape == both[1].shape}
    weights = {
        name: both for name, both in common.items() if not name.endswith(_STATISTICS) and both[1].is_floating_point()
    }
    name = f"{pair.average_name}, the average of {pair.student_name},"
    distance = _distance(weights)
    found = [
        Finding(f"{name} has {len(named)} tensors in common with it, and {len(pair.average) - len(named)} of its own")
    ]
    if other := sorted(named.keys() - common.keys()):
        which = f"{len(other)} of {len(named)}, {other[0]} for one"
        found.append(Finding(f"{name} has tensors of another shape ({which}): it is of another network", True))
    if not math.isfinite(distance):
        found.append(Finding(f"{name} or the student holds NaN or infinities: go back to an earlier checkpoint", True))
    elif distance == 0 and common:
        found.append(
            Finding(f"{name} equals it to the bit: it was saved from the raw weights, or there is no smoothing", True)
        )
    elif common:
        found.append(Finding(f"{name} is {distance:.2%} of the weights' norm away from it"))
    narrow = sorted(
        {str(both[1].dtype).removeprefix("torch.") for both in weights.values() if both[1].element_size() < 4}
    )
    if narrow:
        least = 1 - torch.finfo(getattr(torch, narrow[0])).eps / 2
        text = (
            f"{name} is kept in {', '.join(narrow)}: at m above about {least:.4f} it hardly moves; keep it in float32"
        )
        found.append(Finding(text, True))
    return found + _look_at_buffers(name, common)


def _look_at_buffers(name: str, common: Mapping[str, tuple[Tensor, Tensor]]) -> list[Finding]:
    """Batch norm statistics that are still those of a new network, while the student's have moved."""
    statistics = {key: both for key, both in common.items() if key.endswith(("running_mean", "running_var"))}
    stale = [
        key for key, (student, average) in statistics.items() if _is_new(key, average) and not _is_new(key, student)
    ]
    if stale:
        which = f"{len(stale)} of {len(statistics)}, {stale[0]} for one"
        text = f"{name} has batch norm statistics of a new network ({which}): they were neither copied nor averaged"
        return [Finding(text, True)]
    return [Finding(f"{name} has {len(statistics)} batch norm statistics, which have moved")] if statistics else []


def _is_new(name: str, tensor: Tensor) -> bool:
    return bool((tensor == (0 if name.endswith("mean") else 1)).all())


def _distance(weights: Mapping[str, tuple[Tensor, Tensor]]) -> float:
    """‖average − student‖/‖student‖ over all weights."""
    gap = sum(float((a.double() - s.double()).square().sum()) for s, a in weights.values())
    norm = sum(float(s.double().square().sum()) for s, _ in weights.values())
    return math.sqrt(gap / norm) if norm else math.sqrt(gap)


def _compare(before: Found, after: Found, steps: int | None) -> list[Finding]:
    names = [
        n
        for n, t in before.average.items()
        if n in before.student and t.is_floating_point() and not n.endswith(_STATISTICS)
    ]
    states = (before.student, after.student, after.average)
    if other := [n for n in names for state in states if n not in state or state[n].shape != before.average[n].shape]:
        raise CheckpointError(f"both checkpoints must be of one network, but {other[0]} is missing or of another shape")
    student_moved = any(not torch.equal(before.student[n], after.student[n]) for n in names)
    average_moved = any(not torch.equal(before.average[n], after.average[n]) for n in names)
    name = f"{before.average_name}, the average of {before.student_name},"
    if student_moved and not average_moved:
        return [Finding(f"{name} did not move between the two checkpoints, though {before.student_name} did", True)]
    if not student_moved:
        return [
            Finding(
                f"{before.student_name} did not move between the two checkpoints, so nothing can be told of its average"
            )
        ]
    if steps is None and before.step is not None and after.step is not None:
        steps = after.step - before.step
    if not steps or steps < 1:
        return [Finding(f"{name} moved; how fast cannot be told without the steps between the two: pass --steps")]
    decay, error = fitting_decay(before, after, names, steps)
    return [
        Finding(f"{name} moved over {steps} steps like a moving average with m = {decay:.6g} ({error:.1%} unexplained)")
    ]


def fitting_decay(before: Found, after: Found, names: list[str], steps: int) -> tuple[float, float]:
    """The m whose moving average over `steps` explains the later average best, and what it leaves unexplained.

    The student is taken to have moved on a straight line, S(i) = S₀ + (S₁ − S₀)·i/n. Then the later average is
    aT₀ + bS₀ + cS₁ with a = mⁿ, b + c = 1 − a, c = (1 − m)·Σ mⁿ⁻ⁱ·i/n. Searched by golden section in log(1 − m); the
    error is relative to how far the average moved.
    """
    flat = [
        torch.cat([state[n].double().flatten() for n in names])
        for state in (before.average, before.student, after.student, after.average)
    ]
    old, start, end, new = flat
    lengths = torch.arange(1, steps + 1, dtype=torch.float64)

    def unexplained(log: float) -> float:
        m = 1 - 10.0**log
        weights = (1 - m) * m ** (steps - lengths)
        a, c = m**steps, float((weights * lengths / steps).sum())
        return float((a * old + (1 - a - c) * start + c * end - new).norm() / (new - old).norm())

    low, high, golden = -8.0, 0.0, (math.sqrt(5) - 1) / 2
    for _ in range(60):
        left, right = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, right) if unexplained(left) < unexplained(right) else (left, high)
    best = (low + high) / 2
    return 1 - 10.0**best, unexplained(best)
