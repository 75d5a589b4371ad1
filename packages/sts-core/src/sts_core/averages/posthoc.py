"""Any averaging length after the training, from a few averages that were kept during it (EDM2, arXiv:2312.02696).

An average with a power-function profile weighs the student of update τ by τ^γ, for a γ that stands for the profile's
width as a fraction of the training so far. Few such averages, saved now and then, span what lies between them: another
length, at any update, is close to a linear combination of the snapshots, by least squares on the profiles alone.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sts_core.errors import ConfigError, PairingError
from sts_core.schedules import power_exponent


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """An average as it was after some update."""

    step: int
    """Updates so far, `TeacherBank.step`."""
    length: float
    """Of its profile, as in `power_momentum`."""
    weights: Mapping[str, Tensor]
    """A state dict of the teacher."""


@dataclass(frozen=True, kw_only=True)
class Synthesis:
    """An average that was not kept, made from those that were."""

    weights: dict[str, Tensor]
    coefficients: list[float]
    """Of the snapshots, in their order."""
    error: float
    """The norm of what the synthesised profile lacks, relative to the wanted one: 0 means that nothing is missing."""


def synthesize(snapshots: Sequence[Snapshot], *, step: int, length: float) -> Synthesis:
    """The average of this length after `step` updates: the linear combination whose profile is nearest to its own.

    Look at `error`: far from the kept lengths and steps, or with few snapshots, the combination is another average.
    """
    _check(snapshots, step)
    kept = [(s.step, power_exponent(s.length)) for s in snapshots]
    wanted = (step, power_exponent(length))
    products = torch.tensor([[_product(a, b) for b in kept] for a in kept], dtype=torch.float64)
    right = torch.tensor([_product(a, wanted) for a in kept], dtype=torch.float64)
    found = torch.linalg.lstsq(products, right[:, None], driver="gelsd").solution[:, 0]
    missing = _product(wanted, wanted) - 2 * float(found @ right) + float(found @ products @ found)
    error = math.sqrt(max(0.0, missing) / _product(wanted, wanted))
    return Synthesis(weights=_combined(snapshots, found.tolist()), coefficients=found.tolist(), error=error)


def _check(snapshots: Sequence[Snapshot], step: int) -> None:
    if not snapshots or step < 1 or any(s.step < 1 for s in snapshots):
        raise ConfigError(
            f"a synthesis needs snapshots after at least one update, got {len(snapshots)} of them for step {step}"
        )
    names = set(snapshots[0].weights)
    for number, snapshot in enumerate(snapshots):
        if set(snapshot.weights) != names:
            raise PairingError(
                f"snapshots must be of one network, but number {number} has other tensors than the first"
            )


def _product(a: tuple[int, float], b: tuple[int, float]) -> float:
    """∫ f_a·f_b of two profiles f(τ) = (γ + 1)·τ^γ / t^(γ+1) on 0 … t, given as (t, γ)."""
    (earlier, inner), (later, outer) = sorted((a, b))
    ratio = math.pow(earlier / later, outer)
    return (inner + 1) * (outer + 1) * ratio / ((inner + outer + 1) * later)


def _combined(snapshots: Sequence[Snapshot], coefficients: Sequence[float]) -> dict[str, Tensor]:
    """Sums in float64; what is no floating-point number comes from the latest snapshot."""
    latest = max(snapshots, key=lambda snapshot: snapshot.step).weights
    combined = {}
    for name, last in latest.items():
        combined[name] = last.clone()
        if last.is_floating_point():
            parts = [c * s.weights[name].double() for c, s in zip(coefficients, snapshots, strict=True)]
            combined[name] = torch.stack(parts).sum(dim=0).to(last.dtype)
    return combined
