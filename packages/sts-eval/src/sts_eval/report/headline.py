"""Which number stands for a run, and what each kind of number is called."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sts_eval.report.runs import Run
from sts_eval.results import text_of

HEADLINES = (("linear", "top1"), ("few-labels", "top1"), ("knn", "top1"))
KEYS = ("evaluation", "metric", "network", "which")
FIRST = ("teacher", "student")
EVALUATION_TITLES = {
    "linear": "Linear evaluation",
    "knn": "Nearest neighbours",
    "few-labels": "Classification with few labels",
    "voc": "VOC detection transfer",
}
METRIC_TITLES = {"top1": "top-1", "top5": "top-5", "top1-median": "top-1, median of last checkpoints"}
SOLVERS = {"lbfgs": "L-BFGS", "ridge": "ridge"}


@dataclass(frozen=True)
class Measure:
    """One network's last value of one metric, under one protocol (linear) or with one vote (k-NN)."""

    evaluation: str
    metric: str
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
        return f"{EVALUATION_TITLES[self.evaluation].lower()}{how}, {self.network}, {METRIC_TITLES[self.metric]}, last"

    def of(self, run: Run) -> float | None:
        """The run's value, None where it was not measured."""
        wanted = (self.evaluation, self.metric, self.network, "last", self.variant)
        for entry in run.entries:
            if (*(entry[key] for key in KEYS), variant_of(entry)) == wanted:
                return float(entry["value"])
        return None


def headline(runs: Sequence[Run]) -> Measure | None:
    """The measure that stands for a run: of linear, few labels and k-NN the first that any run has.

    Numbers of two protocols are never mixed: the one that most runs have counts.
    """
    entries = [entry for run in runs for entry in run.entries]
    for network in networks_of(entries):
        for evaluation, metric in HEADLINES:
            wanted = (evaluation, metric, network, "last")
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
    return text_of(entry, "protocol", "data") if "protocol" in entry else label_of(entry)


def label_of(entry: Mapping[str, Any]) -> str:
    """The variant in few words; two protocols may share them."""
    details = [protocol_label(entry["protocol"]), *choice_of(entry)] if "protocol" in entry else []
    details += [f"{short} {entry[key]:g}" for key, short in (("k", "k"), ("temperature", "T")) if key in entry]
    details += [str(entry["backend"])] if "backend" in entry else []
    return ", ".join([*details, *(f"{name} {value}" for name, value in entry.get("data", {}).items())])


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
