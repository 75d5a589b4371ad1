"""How much more robust one run is than another, with intervals: STS minus TMA, corruption by corruption."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sts_core import ConfigError
from sts_eval.corruptions.results import Cell, CorruptionResult
from sts_eval.errors import DataError


@dataclass(frozen=True)
class Difference:
    """A difference of accuracies in percentage points and its interval (None without outcomes of single images)."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class CorruptionDifference:
    """`first` minus `second`, in percentage points of top-1 accuracy."""

    first: str
    second: str
    mean: Difference
    """Over the main corruptions: the paper's metric."""
    corruptions: Mapping[str, Difference]
    """Per corruption, over its severities; the extra ones included."""
    severities: Mapping[int, Difference]
    """Per severity, over the main corruptions."""
    confidence: float
    """Coverage of the intervals."""


def paired_bootstrap(
    differences: npt.NDArray[np.float64], *, confidence: float, num_resamples: int, seed: int
) -> tuple[float, float]:
    """Percentile interval of the mean of per-image differences d_i, images resampled with replacement.

    d_i takes few distinct values v_j (n_j times each), and a resample enters its mean by the counts alone, which are
    Multinomial(n, n_j / n): exact, and as cheap for 50,000 images as for 50.
    """
    values, counts = np.unique(differences, return_counts=True)
    generator = np.random.default_rng(seed)
    draws = generator.multinomial(len(differences), counts / len(differences), size=num_resamples)
    tail = 50.0 * (1.0 - confidence)
    low, high = np.percentile(draws @ values / len(differences), [tail, 100.0 - tail])
    return float(low), float(high)


def compare_corruptions(
    first: CorruptionResult,
    second: CorruptionResult,
    *,
    confidence: float = 0.95,
    num_resamples: int = 10_000,
    seed: int = 0,
) -> CorruptionDifference:
    """Paired comparison of two results on the same images and cells.

    Corruptions of one image share that image, so images and not cells are resampled, each with all of its cells.
    """
    _check_comparable(first, second)
    if not 0.0 < confidence < 1.0:
        raise ConfigError(f"confidence must lie between 0 and 1, got {confidence}: pass a value such as 0.95")

    def difference(cells: Sequence[Cell]) -> Difference:
        value = float(np.mean([first.accuracies[cell] - second.accuracies[cell] for cell in cells]))
        if first.outcomes is None or second.outcomes is None:
            return Difference(value, None, None)
        # Sums of integers, so that equal differences are equal numbers and `unique` groups them.
        per_image = sum(first.outcomes[cell].astype(np.int64) - second.outcomes[cell] for cell in cells)
        points = np.asarray(per_image) * (100.0 / len(cells))
        return Difference(
            value, *paired_bootstrap(points, confidence=confidence, num_resamples=num_resamples, seed=seed)
        )

    main, severities = first.main or first.corruptions, first.severities
    return CorruptionDifference(
        first=first.model,
        second=second.model,
        mean=difference([(name, severity) for name in main for severity in severities]),
        corruptions={name: difference([(name, s) for s in severities]) for name in first.corruptions},
        severities={severity: difference([(name, severity) for name in main]) for severity in severities},
        confidence=confidence,
    )


def _check_comparable(first: CorruptionResult, second: CorruptionResult) -> None:
    if first.shown != second.shown:
        raise DataError(
            f"two results can be compared on the same images only, {first.model} and {second.model} saw others: "
            "evaluate both on one dataset"
        )
    if different := sorted(set(first.accuracies) ^ set(second.accuracies)):
        name, severity = different[0]
        raise DataError(
            f"two results must have the same cells, {first.model} and {second.model} differ in {name} at severity "
            f"{severity}: evaluate both on the same corruptions"
        )
