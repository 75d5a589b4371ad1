"""What each evaluation is called and measures: one record each, from which results, tables and reports are derived.

The record stands beside the function that measures. A package of your own registers its evaluation in the same way:

    register_evaluation(Evaluation(name="margin", title="Margins", column="margin", metrics=(Metric("mean", "mean"),)))
"""

from dataclasses import dataclass
from typing import Any

from sts_core import ConfigError


@dataclass(frozen=True)
class Metric:
    """One number of an evaluation."""

    name: str
    """As in results.json."""
    title: str
    """As in tables."""
    unit: str = "percent"
    """What it is counted in; empty where it has no unit."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """All that a reader of results has to know of an evaluation."""

    name: str
    """As in results.json and on the command line."""
    title: str
    """Over its table in a report."""
    column: str
    """Over its column in a table of runs."""
    metrics: tuple[Metric, ...]
    """What it measures; the first is the one that a table of runs shows."""
    place: int = 1000
    """Its position in tables among the other evaluations, the lowest first."""
    headline: int | None = None
    """Its rank, the lowest first, among the evaluations that may stand for a run; None where it may not."""
    required: tuple[str, ...] = ()
    """What an entry must hold besides evaluation, network, metric, value and which."""
    identity: tuple[str, ...] = ("data",)
    """Keys of an entry that tell two measurements of one metric apart, such as the k of a vote; `seed` always does."""
    row: str | None = None
    """The one of these keys, if any, whose values get rows in a report; the others are named in the columns."""
    only_last: bool = False
    """One checkpoint is measured, and no table needs to say which."""
    own_section: bool = False
    """A report has a section of its own for it."""
    trains_nothing: bool = False
    """It takes no training of its own, so that a search may rank unfinished trials by it."""
    in_training: bool = False
    """It, or a quick form of it, can be measured of networks in training."""
    logged: bool = False
    """Training records it; nothing is left to be measured afterwards."""
    config: Any = None
    """The dataclass of its settings, which becomes the section `evaluation.<name>` of a pipeline."""

    def metric(self, name: str) -> Metric:
        """The metric of that name; one that the record does not list is called what it is called."""
        return next((metric for metric in self.metrics if metric.name == name), Metric(name, name))


_REGISTERED: dict[str, Evaluation] = {}


def register_evaluation(evaluation: Evaluation) -> Evaluation:
    """Make an evaluation known to results, tables and reports; returns it."""
    known = _REGISTERED.setdefault(evaluation.name, evaluation)
    if known != evaluation:
        raise ConfigError(f"an evaluation needs a name of its own, but {evaluation.name!r} is {known.title}: rename it")
    return evaluation


def registered_evaluations() -> list[Evaluation]:
    """All that are registered, in the order of tables."""
    return sorted(_REGISTERED.values(), key=lambda one: one.place)


def evaluation_called(name: str) -> Evaluation:
    """The record of that name."""
    if name not in _REGISTERED:
        choices = ", ".join(one.name for one in registered_evaluations())
        raise ConfigError(f"an evaluation must be one of {choices}, got {name!r}: register it, or correct the name")
    return _REGISTERED[name]
