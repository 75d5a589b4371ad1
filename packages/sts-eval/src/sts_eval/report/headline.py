"""Which number stands for a run, and what each kind of number is called."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sts_eval.evaluations import Evaluation, Metric, evaluation_called, registered_evaluations
from sts_eval.report.runs import Run
from sts_eval.results import text_of

KEYS = ("evaluation", "metric", "network", "which")
FIRST = ("teacher", "student", "untrained")
SHORT = {"temperature": "T"}
SOLVERS = {"lbfgs": "L-BFGS", "ridge": "ridge"}


@dataclass(frozen=True)
class Measure:
    """One network's last value of one metric, under one protocol (linear) or with one vote (k-NN)."""

    evaluation: Evaluation
    metric: Metric
    variant: str
    """What `variant_of` says of its entries."""
    label: str
    """The same in few words."""
    network: str = "teacher"
    """The teacher, as in the paper, unless no run has one."""

    @property
    def title(self) -> str:
        """For captions: `linear evaluation (L-BFGS), teacher, top-1, last`."""
        how = f" ({self.label})" if self.label else ""
        return f"{self.evaluation.title.lower()}{how}, {self.network}, {self.metric.title}, last"

    def of(self, run: Run) -> float | None:
        """The run's value, None where it was not measured."""
        wanted = (self.evaluation.name, self.metric.name, self.network, "last", self.variant)
        for entry in run.entries:
            if (*(entry[key] for key in KEYS), variant_of(entry)) == wanted:
                return float(entry["value"])
        return None


def headline(runs: Sequence[Run]) -> Measure | None:
    """The measure that stands for a run: of the evaluations that may, the first that any run has.

    Numbers of two protocols are never mixed: the one that most runs have counts.
    """
    entries = [entry for run in runs for entry in run.entries]
    ranked = [one for one in registered_evaluations() if one.headline is not None]
    for network in networks_of(entries):
        for evaluation in sorted(ranked, key=lambda one: one.headline or 0):
            metric = evaluation.metrics[0]
            wanted = (evaluation.name, metric.name, network, "last")
            of_kind = [entry for entry in entries if tuple(entry[key] for key in KEYS) == wanted]
            found = Counter((variant_of(entry), label_of(entry)) for entry in of_kind)
            if found:
                return Measure(evaluation, metric, *found.most_common(1)[0][0], network)
    return None


def networks_of(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    """Every network that was measured, teachers first, then students, then others as they come."""
    found = list(dict.fromkeys(str(entry["network"]) for entry in entries))
    return sorted(found, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))


def variant_of(entry: Mapping[str, Any]) -> str:
    """What tells two entries of one metric apart: the probe's protocol, k and T of a vote, the backend, other data."""
    return text_of(entry, *evaluation_called(entry["evaluation"]).identity)


def label_of(entry: Mapping[str, Any]) -> str:
    """The variant in few words; two protocols may share them."""
    identity = evaluation_called(entry["evaluation"]).identity
    return ", ".join(label for key in identity if key in entry for label in _labels(key, entry))


def _labels(key: str, entry: Mapping[str, Any]) -> list[str]:
    value = entry[key]
    if key == "protocol":
        return [protocol_label(value), *choice_of(entry)]
    if isinstance(value, Mapping):
        return [f"{name} {item}" for name, item in value.items()]
    if not isinstance(value, int | float):
        return [str(value)] if key == "backend" else []  # others, such as a schedule in words, are too long
    return [f"{SHORT.get(key, key)} {value:g}"]


def choice_of(entry: Mapping[str, Any]) -> list[str]:
    """How one of several classifiers was chosen, which an accuracy depends on; nothing where there was no choice."""
    part = f"{100 * entry['protocol'].get('held_out_fraction', 0.0):g} % of the training images"
    chosen = {"test": "chosen on the test labels (optimistic)", "held-out": f"chosen on {part}"}
    return [chosen[entry["selected_on"]]] if entry.get("selected_on") in chosen else []


def protocol_label(protocol: Mapping[str, Any]) -> str:
    """`L-BFGS`, or `SGD lr 0.2, 80 epochs, batch norm, augmented`."""
    solver = str(protocol.get("solver"))
    if solver != "sgd":
        return SOLVERS.get(solver, solver)
    rates = ", ".join(f"{rate:g}" for rate in protocol.get("learning_rates", ()))
    switches = [name for key, name in (("batch_norm", "batch norm"), ("augment", "augmented")) if protocol.get(key)]
    return ", ".join([f"SGD lr {rates}", f"{protocol.get('epochs')} epochs", *switches])
