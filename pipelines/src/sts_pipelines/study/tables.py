"""The tables of a study's report, in Markdown."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sts_eval import Estimate, published_rows
from sts_pipelines.study.claims import SELF_SUPERVISED, TITLES, Finding
from sts_pipelines.study.outcomes import Outcomes, summary
from sts_pipelines.study.timing import ratios, update_milliseconds

MEASURES = {
    "linear/teacher": "linear, teacher",
    "linear/student": "linear, student",
    "knn/teacher": "k-NN, teacher",
    "knn/student": "k-NN, student",
    "corrupted/teacher": "corrupted, teacher",
}
DRIFTS = ("drift, weights", "drift, outputs")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others too."""
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
    """One row per comparison; a claim and the paper's word on it are said once."""
    rows = []
    before: tuple[str, str] = ("", "")
    for found in findings:
        now = (found.claim, found.paper)
        unit = "" if found.unit == "points" else f" {found.unit}"
        rows.append(
            [
                found.claim if found.claim != before[0] else "",
                found.paper if now != before else "",
                found.setting,
                found.comparison,
                f"{interval(found.effect, signed=True)}{unit}",
                str(found.effect.count),
                interval(found.student, signed=True),
                f"**{found.verdict}**" if found.verdict != "cannot be told at this size" else "cannot be told",
            ]
        )
        before = now
    header = ["claim", "paper", "here", "comparison", "teacher, 95 % interval", "seeds", "student", "verdict"]
    return table(header, rows)


def means_table(outcomes: Outcomes, experiment: str) -> str:
    """Percent correct of all teachers of a self-supervised experiment."""
    teachers = outcomes.teachers(experiment)
    kept = [m for m in MEASURES if any(outcomes.values(experiment, t, m) for t in teachers)]
    rows = []
    for teacher in teachers:
        cells = [interval(summary(outcomes.values(experiment, teacher, measure))) for measure in kept]
        ends = [summary(outcomes.values(experiment, teacher, name)) for name in ("loss", "effective_rank")]
        ends.append(summary(outcomes.values(experiment, teacher, "width/teacher")))
        drifts = [summary(outcomes.drift(experiment, teacher, part)) for part in (1, 2)]
        moved = ["-" if d is None or teacher == "untrained" else f"{10**d.mean:.1e}" for d in drifts]
        failed = outcomes.num_failed(experiment, teacher)
        name = TITLES[teacher] + (f" ({failed} failed)" if failed else "")
        rows.append([name, *cells, *("-" if end is None else f"{end.mean:.2f}" for end in ends), *moved])
    header = ["teacher", *(MEASURES[m] for m in kept), "loss", "rank of embeddings", "rank of features", *DRIFTS]
    return table(header, rows)


def fixmatch_table(outcomes: Outcomes, experiments: Mapping[str, str]) -> str:
    """Top-1 of every teacher, and of the student, by experiment (a row each)."""
    measured = [name for name in experiments if outcomes.teachers(name)]
    columns = list(dict.fromkeys(t for name in measured for t in outcomes.teachers(name)))
    rows = []
    for name in measured:
        own = outcomes.teachers(name)
        cells = [interval(summary(outcomes.values(name, t, "top1/teacher"))) if t in own else "-" for t in columns]
        # Where the teacher labels there is one student per teacher; that of STS is shown.
        student = summary(outcomes.values(name, "sts", "top1/student"))
        rows.append([experiments[name], *cells, interval(student)])
    return table(["labels", *(TITLES[c] for c in columns), "student"], rows)


def grid_table(outcomes: Outcomes, momenta: Sequence[float], probabilities: Sequence[float]) -> str:
    """Mean linear top-1 of the teacher over the p x m plane."""
    rows = []
    for m in reversed(momenta):
        cells = [
            summary(outcomes.values("byol-digits-grid", f"m{m:g}-p{p:g}", "linear/teacher")) for p in probabilities
        ]
        rows.append([f"m = {m:g}", *(interval(cell) for cell in cells)])
    return table(["", *(f"p = {p:g}" for p in probabilities)], rows)


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


def settings_of(outcomes: Outcomes) -> dict[str, str]:
    """The self-supervised experiments that have results, with their titles."""
    return {name: title for name, title in SELF_SUPERVISED.items() if outcomes.teachers(name)}
