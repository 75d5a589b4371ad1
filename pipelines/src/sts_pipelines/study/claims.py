"""The paper's claims as comparisons between the arms of a study."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from sts_eval import published
from sts_pipelines.study.plan import Comparison, Expected

TITLES = {
    "untrained": "untrained",
    "none": "none",
    "tma": "TMA",
    "se-layer": "SE (LW)",
    "se-neuron": "SE (NW)",
    "sts": "STS",
    "control": "TMA(m_eff)",
    "tma-0.9": "TMA(.9)",
    "tma-0.97": "TMA(.97)",
    "sts-0.9": "STS(.9)",
    "tma-cosine": "TMA, cosine",
    "sts-cosine": "STS, cosine",
    "control-cosine": "TMA(m_eff), cosine",
}
DRIFT_MARGIN = math.log10(1.1)  # a drift within 10 % counts as equal
NO_CONTROL = "no such control"


def self_supervised_claims(experiments: Mapping[str, str]) -> Iterator[Comparison]:
    """What the paper says of MoCo and BYOL, for experiments by the method's name; claim by claim."""
    for claim, paper, pair, expects in _SELF_SUPERVISED:
        for experiment, method in experiments.items():
            yield replace(_compare(claim, paper(method), method, experiment, *pair), expects=expects)
    for claim, shown, pair in _DRIFT:
        for experiment, method in experiments.items():
            base = _compare(claim, shown, method, experiment, *pair)
            ratio = f"{TITLES[pair[0]]} / {TITLES[pair[1]]}, weights"
            yield replace(base, difference=ratio, measure="drift/weights", margin=DRIFT_MARGIN, unit="decades")


def few_label_claims(experiments: Mapping[str, int]) -> Iterator[Comparison]:
    """What the paper says of FixMatch, for experiments by their number of labels, fewest first."""
    for other in ("tma", "control"):
        for experiment, labels in experiments.items():
            paper = f"CIFAR-10 {_gain_of(labels)}" if other == "tma" and labels in (20, 40, 250) else "not reported"
            claim = f"With few labels STS is better than {TITLES[other]}"
            base = _compare(claim, paper, f"FixMatch, {labels} labels", experiment, "sts", other)
            yield replace(base, measure="top1/teacher")
    first, *_, last = experiments
    yield Comparison(
        claim="Few labels gain most",
        paper=f"CIFAR-10 {_gain_of(20)} at 20 labels, {_gain_of(4000)} at 4,000",
        setting="FixMatch",
        difference=f"STS - TMA at {experiments[first]} labels, less that at {experiments[last]}",
        plus=((first, "sts"), (last, "tma")),
        minus=((first, "tma"), (last, "sts")),
        measure="top1/teacher",
    )


def dose_claims(experiment: str) -> Iterator[Comparison]:
    """Whether STS does what a larger m does, for BYOL: m = .9, .97, .99, .997 beside STS of m_eff = .97 and .997."""
    for pair in (("control", "tma"), ("tma", "tma-0.97"), ("tma-0.97", "tma-0.9")):
        yield _compare("A larger m is better, at p = 0", "not reported", "BYOL", experiment, *pair)
    claim = "STS is better than TMA of the same expected pull"
    yield _compare(claim, NO_CONTROL, "BYOL, m = .9", experiment, "sts-0.9", "tma-0.97")


def cosine_claims(experiment: str) -> Iterator[Comparison]:
    """The comparisons of STS where m rises to 1 along a cosine, as in the paper's code."""
    paper = {"tma": _sts("BYOL"), "control": NO_CONTROL}
    for other in ("tma", "control"):
        claim = "STS is better than TMA" + (" of the same expected pull" if other == "control" else "")
        yield _compare(claim, paper[other], "BYOL, cosine", experiment, "sts-cosine", f"{other}-cosine")


def robustness_claims(experiments: Mapping[str, str]) -> Iterator[Comparison]:
    """ImageNet-C: whether STS gains on corrupted images, and whether more than on clean ones."""
    gain = f"about +{_top1('text', 'ImageNet-C', 'mean gain over TMA, about')}"
    for experiment, method in experiments.items():
        for other, paper in (("tma", gain), ("control", NO_CONTROL)):
            base = _compare("STS is more robust to corruption", paper, method, experiment, "sts", other)
            yield replace(base, measure="corrupted/teacher")
        extra = _compare(
            "STS gains on corrupted images what it gains on clean ones",
            "not reported",
            method,
            experiment,
            "sts",
            "tma",
        )
        yield replace(extra, measure="excess/teacher", expects="comparable")


def collapse_claims(experiments: Mapping[str, float], short: str) -> Iterator[Comparison]:
    """Longer trainings by learning rate, without smoothing and with TMA."""
    for experiment, rate in experiments.items():
        where = f"BYOL, longer, lr {rate:g}"
        claim = "Without smoothing training fails: no better than no training"
        failing = _compare(claim, _fails("BYOL"), where, experiment, "untrained", "none")
        yield replace(failing, plus=((short, "untrained"),))
        yield _compare("Smoothing by TMA is better than none", _fails("BYOL"), where, experiment, "tma", "none")


def teacher_label_claims(experiment: str, labels: int) -> Iterator[Comparison]:
    """FixMatch where the teacher, and not the student, gives the pseudo-labels."""
    taught, where = f"{experiment}-teacher", f"FixMatch, {labels} labels"
    for other in ("tma", "control"):
        claim = f"Where the teacher labels STS is better than {TITLES[other]}"
        yield replace(_compare(claim, "does not say who labels", where, taught, "sts", other), measure="top1/teacher")
    better = _compare(
        "Labels by the teacher are better than by the student", "not reported", where, taught, "tma", "tma"
    )
    yield replace(
        better, difference="TMA: teacher - student labels", minus=((experiment, "tma"),), measure="top1/teacher"
    )


def by_claim(comparisons: Iterable[Comparison]) -> list[Comparison]:
    """Comparisons of one claim side by side, claims in the order of their first."""
    groups: dict[str, list[Comparison]] = {}
    for comparison in comparisons:
        groups.setdefault(comparison.claim, []).append(comparison)
    return [comparison for group in groups.values() for comparison in group]


def _compare(claim: str, paper: str, setting: str, experiment: str, first: str, second: str) -> Comparison:
    return Comparison(
        claim=claim,
        paper=paper,
        setting=setting,
        difference=_minus((first, second)),
        plus=((experiment, first),),
        minus=((experiment, second),),
    )


def _minus(pair: tuple[str, str]) -> str:
    return f"{TITLES[pair[0]]} - {TITLES[pair[1]]}"


def _top1(table: str, row: str, column: str = "top-1") -> str:
    return published(table, row, column).printed


def _gain(table: str, row: str, base: str, column: str = "top-1") -> str:
    """How much better than `base` the paper says that `row` is, with a sign."""
    better, worse = published(table, row, column), published(table, base, column)
    assert better.value is not None
    assert worse.value is not None
    return f"{better.value - worse.value:+.{better.decimals}f}"


def _gain_of(labels: int) -> str:
    return _gain("few-labels", "FixMatch (STS)", "FixMatch", f"CIFAR-10 {labels}")


def _fails(method: str) -> str:
    return f"{method} fails to converge"


def _se(method: str) -> str:
    return _top1("effect-of-se", f"{method} SE")


def _granularity(method: str) -> str:
    return f"BYOL: LW {_top1('granularity', 'SE LW')}, NW {_top1('granularity', 'SE NW')}"


def _comparable(method: str) -> str:
    return f"BYOL: NW {_top1('granularity', 'SE NW')}, TMA {_top1('granularity', 'TMA')}"


def _sts(method: str) -> str:
    return _gain("effect-of-sts", f"{method} STS", f"{method} TMA")


_SELF_SUPERVISED: tuple[tuple[str, Callable[[str], str], tuple[str, str], Expected], ...] = (
    ("Without smoothing training fails: no better than no training", _fails, ("untrained", "none"), "greater"),
    ("Smoothing by TMA is better than none", _fails, ("tma", "none"), "greater"),
    ("SE works alone", _se, ("se-layer", "untrained"), "greater"),
    ("Fine-grained SE is comparable with TMA", _comparable, ("se-neuron", "tma"), "comparable"),
    ("SE improves with finer granularity", _granularity, ("se-neuron", "se-layer"), "greater"),
    ("STS is better than TMA", _sts, ("sts", "tma"), "greater"),
    ("STS is better than TMA of the same expected pull", lambda _: NO_CONTROL, ("sts", "control"), "greater"),
)
_DRIFT = (
    ("TMA teachers drift less than unsmoothed ones", "smoothing figure", ("none", "tma")),
    ("STS teachers drift less than TMA's", "implied", ("tma", "sts")),
    ("STS teachers drift less than those of TMA(m_eff)", NO_CONTROL, ("control", "sts")),
)
