"""Every claim of the paper as rows: what it says, what we measured, and a verdict that a stated rule gives.

The rule. Teachers are compared seed by seed (the same initial weights, images, order and augmentation), and the 95 %
t-interval of the mean difference decides: wholly on the claim's side of zero, the claim *holds*; wholly on the other
side, it *does not hold*; else it *cannot be told at this size*, as with fewer than three seeds. For "is comparable" the
interval must lie within, or wholly outside of, one point.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from sts_eval import Estimate, published
from sts_pipelines.study.outcomes import BySeed, Outcomes, minus, summary
from sts_pipelines.study.small import CIFAR_LABELS, DIGIT_LABELS, GRID_MOMENTA, GRID_PROBABILITIES, TEACHER_LABELS

Verdict = Literal["holds", "does not hold", "cannot be told at this size"]
LEAST_SEEDS = 3
MARGIN = 1.0
"""Points within which two accuracies count as comparable."""
SELF_SUPERVISED = {
    "byol-digits": "BYOL, digits",
    "byol-digits-gentle": "BYOL, digits, low lr",
    "byol-cifar10": "BYOL, CIFAR-10",
    "moco-digits": "MoCo, digits",
}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One row: a comparison that a claim makes a prediction about."""

    claim: str
    paper: str
    """What the paper reports, at its own scale."""
    setting: str
    comparison: str
    effect: Estimate
    """Of the teacher; positive is on the claim's side."""
    student: Estimate | None = None
    """The same of the student, for information."""
    unit: str = "points"
    verdict: Verdict


def sided(effect: Estimate) -> Verdict:
    """Whether an effect is above zero."""
    if effect.low is None or effect.high is None or effect.count < LEAST_SEEDS:
        return "cannot be told at this size"
    if effect.low > 0:
        return "holds"
    return "does not hold" if effect.high < 0 else "cannot be told at this size"


def comparable(effect: Estimate) -> Verdict:
    """Whether an effect is within the margin."""
    if effect.low is None or effect.high is None or effect.count < LEAST_SEEDS:
        return "cannot be told at this size"
    if effect.low >= -MARGIN and effect.high <= MARGIN:
        return "holds"
    outside = effect.low > MARGIN or effect.high < -MARGIN
    return "does not hold" if outside else "cannot be told at this size"


def findings(outcomes: Outcomes) -> list[Finding]:
    """All rows for which something has been measured, in the paper's order."""
    parts = (_no_smoothing, _spatial_ensemble, _granularity, _sts, _grid, _drift, _few_labels, _labellers, _robustness)
    return [finding for part in parts for finding in part(outcomes)]


def _row(
    claim: str,
    paper: str,
    setting: str,
    comparison: str,
    effect: BySeed,
    *,
    student: BySeed | None = None,
    unit: str = "points",
    rule: Callable[[Estimate], Verdict] = sided,
) -> Iterator[Finding]:
    measured = summary(effect)
    if measured is not None:
        yield Finding(
            claim=claim,
            paper=paper,
            setting=setting,
            comparison=comparison,
            effect=measured,
            student=summary(student) if student else None,
            unit=unit,
            verdict=rule(measured),
        )


def _compare(
    outcomes: Outcomes,
    experiment: str,
    pair: tuple[str, str],
    claim: str,
    paper: str,
    *,
    measure: str = "linear",
    rule: Callable[[Estimate], Verdict] = sided,
) -> Iterator[Finding]:
    """Teacher `pair[0]` against `pair[1]`, by the teacher's own accuracy and, for information, by the student's."""
    sides = [
        minus(*(outcomes.values(experiment, name, f"{measure}/{network}") for name in pair))
        for network in ("teacher", "student")
    ]
    setting = SELF_SUPERVISED.get(experiment, experiment)
    comparison = f"{TITLES[pair[0]]} - {TITLES[pair[1]]}"
    yield from _row(claim, paper, setting, comparison, sides[0], student=sides[1], rule=rule)


TITLES = {
    "untrained": "untrained",
    "none": "none",
    "tma": "TMA",
    "se-layer": "SE (LW)",
    "se-channel": "SE (CW)",
    "se-neuron": "SE (NW)",
    "sts": "STS",
    "control": "TMA(m_eff)",
}


def _paper(table: str, row: str, column: str = "top-1") -> str:
    return published(table, row, column).printed


def _paper_gain(table: str, row: str, base: str, column: str = "top-1") -> str:
    """How much better than `base` the paper says that `row` is, with a sign."""
    better, worse = published(table, row, column), published(table, base, column)
    assert better.value is not None
    assert worse.value is not None
    return f"{better.value - worse.value:+.{better.decimals}f}"


def _no_smoothing(outcomes: Outcomes) -> Iterator[Finding]:
    paper = "MoCo and BYOL fail to converge"
    for experiment in SELF_SUPERVISED:
        pair = ("untrained", "none")
        yield from _compare(
            outcomes, experiment, pair, "Without smoothing, training fails: no better than no training", paper
        )
    for experiment, setting in SELF_SUPERVISED.items():
        ranks = minus(*(outcomes.values(experiment, name, "effective_rank") for name in ("tma", "none")))
        claim, comparison = "Without smoothing, embeddings collapse", "effective rank of embeddings, TMA - none"
        yield from _row(claim, paper, setting, comparison, ranks, unit="dimensions")
    for experiment in SELF_SUPERVISED:
        yield from _compare(outcomes, experiment, ("tma", "none"), "Smoothing (TMA) is better than none", paper)


def _spatial_ensemble(outcomes: Outcomes) -> Iterator[Finding]:
    moco, byol = (_paper("effect-of-se", f"{method} SE") for method in ("MoCo", "BYOL"))
    learns = f"MoCo {moco}, BYOL {byol} where no smoothing fails"
    same = f"NW {_paper('granularity', 'SE NW')}, TMA {_paper('granularity', 'TMA')}"
    for experiment in SELF_SUPERVISED:
        yield from _compare(outcomes, experiment, ("se-layer", "untrained"), "SE works alone: it learns", learns)
    for experiment in SELF_SUPERVISED:
        pair = ("se-neuron", "tma")
        yield from _compare(outcomes, experiment, pair, "Fine-grained SE is comparable with TMA", same, rule=comparable)


def _granularity(outcomes: Outcomes) -> Iterator[Finding]:
    claim = "SE improves with finer granularity"
    paper = ", ".join(f"{unit} {_paper('granularity', f'SE {unit}')}" for unit in ("LW", "CW", "NW"))
    for experiment in SELF_SUPERVISED:
        for pair in (("se-channel", "se-layer"), ("se-neuron", "se-layer")):
            yield from _compare(outcomes, experiment, pair, claim, paper)


def _sts(outcomes: Outcomes) -> Iterator[Finding]:
    methods = {name: "MoCo" if name.startswith("moco") else "BYOL" for name in SELF_SUPERVISED}
    gains = {
        name: f"{method} {_paper_gain('effect-of-sts', f'{method} STS', f'{method} TMA')}"
        for name, method in methods.items()
    }
    for experiment, paper in gains.items():
        yield from _compare(outcomes, experiment, ("sts", "tma"), "STS is better than TMA", paper)
    for experiment in gains:
        claim = "STS is better than TMA of the same expected pull"
        yield from _compare(outcomes, experiment, ("sts", "control"), claim, "no such control")


def _grid(outcomes: Outcomes) -> Iterator[Finding]:
    """Per seed: by how many decades of 1 - p the best p at the smallest m exceeds that at the largest."""
    falls: BySeed = {}
    for seed, best in best_probabilities(outcomes).items():
        if len(best) == len(GRID_MOMENTA):
            falls[seed] = math.log10((1 - best[GRID_MOMENTA[-1]]) / (1 - best[GRID_MOMENTA[0]]))
    comparison = f"-log10(1-p) of the best p, m = {GRID_MOMENTA[0]:g} against m = {GRID_MOMENTA[-1]:g}"
    paper = "best p .99 at m = .9, .7 at m = .99"
    yield from _row("The best p falls as m rises", paper, "BYOL, digits", comparison, falls, unit="decades")


def best_probabilities(outcomes: Outcomes) -> dict[int, dict[float, float]]:
    """Per seed and m the p of the highest linear top-1 of the teacher (the smallest of equals)."""
    found: dict[int, dict[float, float]] = {}
    for m in GRID_MOMENTA:
        cells = {p: outcomes.values("byol-digits-grid", f"m{m:g}-p{p:g}", "linear/teacher") for p in GRID_PROBABILITIES}
        for seed in set.intersection(*(set(values) for values in cells.values())):
            found.setdefault(seed, {})[m] = max(GRID_PROBABILITIES, key=lambda p: (cells[p][seed], -p))
    return found


def _drift(outcomes: Outcomes) -> Iterator[Finding]:
    pairs = {
        ("none", "tma"): ("TMA teachers drift less than unsmoothed ones", "shown in the smoothing figure"),
        ("none", "se-layer"): ("SE teachers drift less than unsmoothed ones", "shown in the smoothing figure"),
        ("tma", "sts"): ("STS teachers drift less than TMA's", "implied, not shown"),
        ("control", "sts"): ("STS teachers drift less than TMA(m_eff)'s", "no such control"),
    }
    for (more, less), (claim, paper) in pairs.items():
        for experiment, setting in SELF_SUPERVISED.items():
            for part, what in ((1, "weights"), (2, "outputs")):
                effect = minus(outcomes.drift(experiment, more, part), outcomes.drift(experiment, less, part))
                comparison = f"{TITLES[more]} / {TITLES[less]}, {what}"
                yield from _row(claim, paper, setting, comparison, effect, unit="decades")


def _gain(outcomes: Outcomes, experiment: str, other: str = "tma") -> BySeed:
    return minus(*(outcomes.values(experiment, name, "top1/teacher") for name in ("sts", other)))


def _paper_few_labels(labels: int) -> str:
    return _paper_gain("few-labels", "FixMatch (STS)", "FixMatch", f"CIFAR-10 {labels}")


def _few_labels(outcomes: Outcomes) -> Iterator[Finding]:
    for experiment, setting, labels in _fixmatch_experiments():
        paper = f"CIFAR-10: {_paper_few_labels(labels)}" if labels in (20, 40, 250) else "not reported"
        where = f"{setting}, {labels} labels"
        claim = "STS is better than TMA with few labels"
        yield from _row(claim, paper, where, "STS - TMA", _gain(outcomes, experiment))
        control = _gain(outcomes, experiment, "control")
        yield from _row(claim, "no such control", where, "STS - TMA(m_eff)", control)
    for setting, counts in _LABELS.items():
        few, many = (_gain(outcomes, f"fixmatch-{setting}-{n}") for n in (counts[0], counts[-1]))
        comparison = f"gain at {counts[0]} - gain at {counts[-1]} labels"
        paper = f"CIFAR-10: {_paper_few_labels(20)} at 20 labels, {_paper_few_labels(4000)} at 4,000"
        yield from _row("Few labels gain most", paper, f"FixMatch, {_NAMES[setting]}", comparison, minus(few, many))


_NAMES = {"digits": "digits", "cifar10": "CIFAR-10"}
_LABELS: dict[str, tuple[int, ...]] = {"digits": DIGIT_LABELS, "cifar10": CIFAR_LABELS}


def _fixmatch_experiments() -> Iterator[tuple[str, str, int]]:
    for name, counts in _LABELS.items():
        for labels in counts:
            yield f"fixmatch-{name}-{labels}", f"FixMatch, {_NAMES[name]}", labels


def _labellers(outcomes: Outcomes) -> Iterator[Finding]:
    """What changes when the teacher, and not the student, gives the pseudo-labels."""
    for name, dataset in (("digits", "digits"), ("cifar10", "arrays")):
        for labels in TEACHER_LABELS[dataset]:
            experiment, where = f"fixmatch-{name}-{labels}", f"FixMatch, {_NAMES[name]}, {labels} labels"
            taught = f"{experiment}-teacher"
            paper = "does not say who labels"
            for teacher in ("tma", "sts"):
                effect = minus(*(outcomes.values(e, teacher, "top1/teacher") for e in (taught, experiment)))
                claim = "Labels by the teacher are better than by the student"
                yield from _row(claim, paper, where, f"{TITLES[teacher]}: teacher - student labels", effect)
            claim = "STS is better than TMA where the teacher labels"
            yield from _row(claim, paper, where, "STS - TMA", _gain(outcomes, taught))
            yield from _row(claim, paper, where, "STS - TMA(m_eff)", _gain(outcomes, taught, "control"))


def _robustness(outcomes: Outcomes) -> Iterator[Finding]:
    claim, gain = "STS is more robust to corruption", _paper("text", "ImageNet-C", "mean gain over TMA, about")
    for experiment in SELF_SUPERVISED:
        for other, paper in (("tma", f"ImageNet-C: about +{gain}"), ("control", "no such control")):
            yield from _compare(outcomes, experiment, ("sts", other), claim, paper, measure="corrupted")
