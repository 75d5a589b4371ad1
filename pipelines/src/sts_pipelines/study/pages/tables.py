"""The tables of a study's plan and report, in Markdown."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sts_eval import Estimate, published_rows
from sts_pipelines.study.claims import TITLES
from sts_pipelines.study.outcomes import Outcomes, summary
from sts_pipelines.study.plan import Comparison, Study
from sts_pipelines.study.power import MOST_SEEDS, Need
from sts_pipelines.study.timing import ratios, update_milliseconds
from sts_pipelines.study.verdicts import Finding

MEASURES = {
    "linear/teacher": "linear, teacher",
    "linear/student": "linear, student",
    "knn/teacher": "k-NN, teacher",
    "corrupted/teacher": "corrupted, teacher",
    "effective_rank": "rank of embeddings",
    "width/teacher": "rank of features",
}


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def interval(effect: Estimate | None, *, signed: bool = False) -> str:
    """94.2 ± 0.8, or +0.31 [-0.20, +0.82]; a single seed has no interval."""
    if effect is None:
        return "-"
    if effect.low is None or effect.high is None:
        return f"{effect.mean:+.2f} (one seed)" if signed else f"{effect.mean:.1f} (one seed)"
    if signed:
        return f"{effect.mean:+.2f} [{effect.low:+.2f}, {effect.high:+.2f}]"
    return f"{effect.mean:.1f} ± {effect.high - effect.mean:.1f}"


def claims_table(findings: Sequence[Finding]) -> str:
    """One row per comparison with its interval, corrected p-values and verdict."""
    rows = []
    for before, found in zip([None, *findings], findings, strict=False):
        verdict: str = found.verdict
        if verdict in ("holds", "does not hold") and found.within <= 0.05:
            verdict += ", by less than the margin"
        rows.append(
            [
                *_named(found.comparison, before.comparison if before else None),
                f"{interval(found.effect, signed=True)}{_unit(found.comparison)}",
                f"{found.effect.count} of {found.planned}",
                *(f"{p:.2g}" for p in (found.different, found.within)),
                verdict,
            ]
        )
    return table([*_NAMED, "95 % interval", "seeds", "p, zero", "p, margin", "verdict"], rows)


def needs_table(needs: Sequence[Need]) -> str:
    """One row per comparison with the pilot's deviation and what follows from it."""
    rows = []
    for before, need in zip([None, *needs], needs, strict=False):
        unit = _unit(need.comparison)
        rows.append(
            [
                *_named(need.comparison, before.comparison if before else None),
                need.comparison.expects,
                f"{need.comparison.margin:.2g}{unit}",
                f"{need.deviation:.2g}",
                f"over {MOST_SEEDS}" if need.seeds >= MOST_SEEDS else str(need.seeds),
                str(need.planned),
                f"{need.power:.2f}",
                f"{need.detectable:.2g}{unit}",
            ]
        )
    return table([*_NAMED, "expected", "margin", "pilot sd", "seeds for 0.9", "planned", "power", "detectable"], rows)


_NAMED = ("claim", "paper", "here", "difference")


def _named(comparison: Comparison, before: Comparison | None) -> list[str]:
    claim = comparison.claim if before is None or before.claim != comparison.claim else ""
    return [claim, comparison.paper, comparison.setting, comparison.difference]


def _unit(comparison: Comparison) -> str:
    return "" if comparison.unit == "points" else f" {comparison.unit}"


def means_table(study: Study, outcomes: Outcomes) -> str:
    """Means of all arms of the self-supervised experiments."""
    experiments = [name for name in dict.fromkeys(run.experiment for run in study.runs) if outcomes.teachers(name)]
    trained = [name for name in experiments if "bank" not in name and not name.startswith("fixmatch")]
    rows = []
    for experiment in trained:
        for teacher in outcomes.teachers(experiment):
            failed = outcomes.num_failed(experiment, teacher)
            name = TITLES.get(teacher, teacher) + (f" ({failed} failed)" if failed else "")
            cells = [interval(summary(outcomes.values(experiment, teacher, measure))) for measure in MEASURES]
            rows.append([experiment, name, *cells])
    return table(["experiment", "teacher", *MEASURES.values()], rows)


def fixmatch_table(study: Study, outcomes: Outcomes) -> str:
    """Top-1 of every teacher, and of the student, by experiment (a row each)."""
    named = dict.fromkeys(run.experiment for run in study.runs if run.experiment.startswith("fixmatch"))
    measured = [name for name in named if outcomes.teachers(name)]
    columns = list(dict.fromkeys(t for name in measured for t in outcomes.teachers(name)))
    rows = []
    for name in measured:
        cells = [interval(summary(outcomes.values(name, t, "top1/teacher"))) for t in columns]
        # Where the teacher labels there is one student per teacher; that of STS is shown.
        rows.append([name, *cells, interval(summary(outcomes.values(name, "sts", "top1/student")))])
    return table(["experiment", *(TITLES[c] for c in columns), "student"], rows)


def timing_table(times: Sequence[Mapping[str, Any]]) -> str:
    """Relative time of a whole step (median and quartiles over turns), and milliseconds of the update alone."""
    header = ["update", "paper"]
    for entry in times:
        header += [f"{entry['network']}: ours", "update, ms", "pseudo-code", "update, ms"]
    rows = []
    for case, printed in published_rows("granularity").items():
        row = [case, f"{printed['time'].value:.2f}x"]
        for entry in times:
            for implementation in ("ours", "pseudo-code"):
                middle, low, high = ratios(entry[implementation], case)
                row += [
                    f"{middle:.2f}x ({low:.2f}-{high:.2f})",
                    f"{update_milliseconds(entry[implementation], case):.0f}",
                ]
        rows.append(row)
    return table(header, rows)
