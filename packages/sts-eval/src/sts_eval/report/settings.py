"""Runs that differ in nothing but their seed, as one setting with one mean."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sts_eval.intervals import Estimate, difference, estimate
from sts_eval.report.blocks import Delta
from sts_eval.report.headline import Measure
from sts_eval.report.runs import Run, smoothing_label

ONE_SEED = "one seed: no conclusion"


@dataclass(frozen=True)
class Setting:
    """One recipe with one smoothing, trained with one seed or more."""

    run: Run
    """Its first run, to name it by."""
    values: Mapping[Any, float]
    """The measure by seed: of two runs with the same seed the last counts, since they are no two measurements."""

    @property
    def estimate(self) -> Estimate:
        return estimate(list(self.values.values()))

    @property
    def name(self) -> str:
        """Its smoothing where that is known, else its run."""
        return self.run.name if self.run.smoothing is None else smoothing_label(self.run.smoothing)

    def minus(self, other: "Setting") -> Delta:
        """The difference of the means with its interval; of one seed it says so."""
        found = difference(self.values, other.values)
        return Delta(found.mean, 2, found.low, found.high, "" if found.low is not None else ONE_SEED)


def settings_of(runs: Sequence[Run], measure: Measure) -> list[Setting]:
    """The settings among `runs` that have the measure; a run without a training.json is a setting of its own."""
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        if measure.of(run) is not None:
            groups.setdefault(key_of(run), []).append(run)
    return [
        Setting(group[0], {run.seed_key: value for run in group if (value := measure.of(run)) is not None})
        for group in groups.values()
    ]


def by_setting(runs: Sequence[Run]) -> list[Run]:
    """The runs with those of one setting side by side, in the order of their seeds."""
    keys = list(dict.fromkeys(map(key_of, runs)))
    return sorted(runs, key=lambda run: (keys.index(key_of(run)), run.seed or 0))


def key_of(run: Run) -> tuple[Any, ...]:
    """What the seeds of one setting share: the recipe, p, m, and the granularity where p makes it matter."""
    smoothing = run.smoothing
    if not run.training:
        return (run.name,)
    if smoothing is None:
        return (run.recipe,)
    p, m = round(smoothing.preserve_probability, 9), round(smoothing.momentum, 9)
    return run.recipe, p, m, smoothing.granularity if p > 0 else ""


def control_key(run: Run) -> tuple[Any, ...] | None:
    """The key of the moving average with the same expected pull; None where the run is no spatial one."""
    smoothing = run.smoothing
    if smoothing is None or run.kind not in ("SE", "STS") or smoothing.preserve_probability >= 1:
        return None
    return run.recipe, 0.0, round(smoothing.effective_momentum, 9), ""


def control_of(run: Run) -> str:
    """How to make the control of a run: the command that a pipeline wrote down, or what to train."""
    assert run.smoothing is not None
    usual = "train it again with momentum {momentum} and preserve_probability 0"
    command = str(run.training.get("control", usual))
    return command.format(folder=run.folder, momentum=f"{run.smoothing.effective_momentum:.12g}")
