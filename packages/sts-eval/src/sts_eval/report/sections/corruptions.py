"""Corrupted images in a report: curves over severities, and what one run gains over another on each corruption."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from sts_eval.corruptions.benchmark import ALL_CORRUPTIONS, EXTRA_CORRUPTIONS, GROUPS
from sts_eval.corruptions.differences import CorruptionDifference, compare_corruptions
from sts_eval.corruptions.results import IMAGENET_C, NUM_IMAGENET_CLASSES, NUM_MAIN_CELLS, CorruptionResult
from sts_eval.paper.numbers import published
from sts_eval.report.blocks import (
    Block,
    Code,
    Delta,
    Figure,
    Paragraph,
    Section,
    Table,
    TableValue,
    numeric_table,
    percent,
)
from sts_eval.report.charts.svg import Bar, Series, bar_chart, dot_plot, line_chart
from sts_eval.report.headline import networks_of
from sts_eval.report.runs import Run
from sts_eval.report.sections.figures import colours_of, legend_of
from sts_eval.report.settings import control_key, key_of
from sts_eval.results import text_of

ALL_GROUPS = GROUPS | {"extra": EXTRA_CORRUPTIONS}
MAX_PAIRS = 6
"""Comparisons that are drawn; more runs than these are in the tables only."""


def corruption_section(runs: Sequence[Run], *, against_paper: bool) -> Section | None:
    """Everything about corrupted images, for the runs whose teacher saw them, or if none did, another network."""
    networks = networks_of(entry for run in runs for entry in run.entries if entry["evaluation"] == "imagenet-c")
    measured = {network: {run.name: e for run in runs if (e := _entry(run, network))} for network in networks}
    network = next((name for name in networks if measured[name]), None)
    if network is None:
        return None
    kept = [run for run in runs if run.name in measured[network]]
    found = {run.name: _result(run, measured[network][run.name]) for run in kept}
    images = {run.name: _images(run, measured[network][run.name], found[run.name]) for run in kept}
    blocks: list[Block] = [_summary(kept, found, images), _overview(kept, found, network, colours_of(runs))]
    if network == "teacher" and (left := [name for name in measured.get("student", ()) if name not in found]):
        blocks.append(Paragraph(f"Left out, since only their students were evaluated: {', '.join(left)}."))
    released = [name.startswith(IMAGENET_C.title) for name in images.values()]
    if against_paper and any(released):
        gain, low, high = (
            published("text", "ImageNet-C", f"{what}, about").printed
            for what in ("mean gain over TMA", "smallest gain", "largest gain")
        )
        blocks.append(
            Paragraph(
                f"The paper, for BYOL on ImageNet: STS is about {gain} points better than TMA in the mean of the 75 "
                f"cells, and about {low} to {high} in a single one."
            )
        )
    seen = {run.name: _seen(found[run.name], measured[network][run.name]) for run in kept}
    title = IMAGENET_C.title if all(released) else "Corrupted images"
    return Section("corruptions", title, [*blocks, *_differences(kept, found, seen)], "Corruptions")


def _images(run: Run, entry: Mapping[str, Any], result: CorruptionResult) -> str:
    """Which images were corrupted, by whom, and how many: `ImageNet-C, released, 50,000 images`."""
    source = str(result.source.get("source", "of unknown origin"))
    dataset = {**run.training.get("data", {}), **dict(entry.get("data") or {})}.get("dataset", "unknown dataset")
    if source == "released folders" and result.num_classes == NUM_IMAGENET_CLASSES:
        dataset = IMAGENET_C.title
    return f"{dataset}, {source.removesuffix(' folders').removesuffix(' arrays')}, {result.num_images:,} images"


def _entry(run: Run, network: str) -> Mapping[str, Any] | None:
    """The newest result of a network of the run."""
    found = (entry for entry in run.entries if (entry["evaluation"], entry["network"]) == (IMAGENET_C.name, network))
    return next((entry for entry in found if "cells" in entry), None)


def _result(run: Run, entry: Mapping[str, Any]) -> CorruptionResult:
    result = CorruptionResult.from_json({**entry, "model": run.name})
    file = run.folder / str(entry["outcomes"]) if entry.get("outcomes") else None
    return result.with_outcomes(file) if file is not None and file.is_file() else result


def _overview(
    runs: Sequence[Run], found: Mapping[str, CorruptionResult], network: str, colours: Mapping[str, int]
) -> Figure:
    """Accuracy by severity (if there are several) and by corruption, all runs in one drawing each."""
    drawings = [("By corruption", _dots(runs, found, colours))]
    if max(len(result.severities) for result in found.values()) > 1:
        drawings.insert(0, ("By severity", _curve(runs, found, colours)))
    cells = {result.num_main_cells for result in found.values()}
    count = f"{cells.pop()} cells" if len(cells) == 1 else "the main cells of each run"
    note = f"The last group are the four extra corruptions, which are part of no mean; means are over {count}."
    caption = f"Top-1 on corrupted images, {network}"
    return Figure(caption, drawings, legend_of(runs, colours), _table(runs, found), note)


def _curve(runs: Sequence[Run], found: Mapping[str, CorruptionResult], colours: Mapping[str, int]) -> str:
    lines = [
        Series(run.name, tuple((float(s), v) for s, v in found[run.name].severity_curve.items()), colours[run.name])
        for run in runs
    ]
    return line_chart(
        lines,
        label="top-1 by severity",
        x_label="severity, mean over the main corruptions",
        y_label="top-1, %",
        markers=True,
        x_ticks=sorted({x for line in lines for x, _ in line.points}),
        height=330,
    )


def _dots(runs: Sequence[Run], found: Mapping[str, CorruptionResult], colours: Mapping[str, int]) -> str:
    known = {name for result in found.values() for name in result.corruptions}
    rows = [(name, group) for group, names in ALL_GROUPS.items() for name in names if name in known]
    series = []
    for run in runs:
        result = found[run.name]
        points = [(i, result.corruption_accuracy(n)) for i, (n, _) in enumerate(rows) if n in result.corruptions]
        series.append(Series(run.name, tuple((float(i), value) for i, value in points), colours[run.name]))
    plain = [(name.replace("_", " "), group) for name, group in rows]
    return dot_plot(plain, series, label="top-1 by corruption", x_label="top-1, %")


def _summary(runs: Sequence[Run], found: Mapping[str, CorruptionResult], images: Mapping[str, str]) -> Table:
    """The paper's mean, the mCE, and the means of the groups."""
    groups = [group for group in GROUPS if any(group in result.group_accuracies for result in found.values())]
    extra = any(result.extra_accuracies for result in found.values())
    rows: list[list[TableValue]] = []
    for run in runs:
        result = found[run.name]
        error, extras = result.mean_corruption_error, list(result.extra_accuracies.values())
        row: list[TableValue] = [
            Code(run.name),
            percent(result.mean_accuracy),
            f"{result.num_main_cells} of {NUM_MAIN_CELLS}",
            None if error is None else f"{error:.1f}",
        ]
        row += [percent(result.group_accuracies.get(group)) for group in groups]
        rows.append([*row, *([percent(fmean(extras)) if extras else None] if extra else []), images[run.name]])
    header = ["run", "mean", "cells", "mCE", *groups, *(["extra"] if extra else []), "images"]
    note = "Mean: top-1 over the cells of the main corruptions, in the paper all 75. "
    note += "mCE: by AlexNet's errors, for all of ImageNet-C only."
    return Table(header, rows, note=note, numeric=frozenset(range(1, len(header) - 1)))


def _table(runs: Sequence[Run], found: Mapping[str, CorruptionResult]) -> Table:
    """Accuracy by corruption and by severity, a column per run."""
    rows: list[list[TableValue]] = []
    for name in ALL_CORRUPTIONS:
        values = [found[r.name].corruption_accuracy(name) if name in found[r.name].corruptions else None for r in runs]
        if any(value is not None for value in values):
            extra = " (extra)" if name in EXTRA_CORRUPTIONS else ""
            rows.append([name.replace("_", " ") + extra, *(percent(value) for value in values)])
    for severity in sorted({severity for result in found.values() for severity in result.severity_curve}):
        values = [found[run.name].severity_curve.get(severity) for run in runs]
        rows.append([f"severity {severity}", *(percent(value) for value in values)])
    return numeric_table(["", *(run.name for run in runs)], rows)


def _differences(
    runs: Sequence[Run], found: Mapping[str, CorruptionResult], seen: Mapping[str, tuple[object, ...]]
) -> list[Block]:
    """Each run minus the moving averages of its own recipe: that of its m, and that of its m_eff."""
    pairs = [(run, base) for run in runs for base in _bases(run, runs)]
    alike = [(run, base) for run, base in pairs if seen[run.name] == seen[base.name]]
    figures = [
        _difference_figure(compare_corruptions(found[run.name], found[base.name])) for run, base in alike[:MAX_PAIRS]
    ]
    # What all of them say stands once, under the last.
    blocks: list[Block] = [
        replace(one, note="") if one.note == figures[-1].note and one is not figures[-1] else one for one in figures
    ]
    reason = "which saw other images or other cells, or has another probe"
    for base in dict.fromkeys(base.name for pair in pairs if pair not in alike for base in pair[1:]):
        unlike = [run.name for run, other in pairs if other.name == base and (run, other) not in alike]
        blocks.append(Paragraph(f"Not compared with {base}, {reason}: {', '.join(unlike)}."))
    spatial = [run for run in runs if control_key(run) is not None]
    if alone := [run.name for run in spatial if not any(run is first for first, _ in pairs)]:
        blocks.append(Paragraph(f"Without a moving average of the same recipe: {', '.join(alone)}."))
    return blocks


def _bases(run: Run, runs: Sequence[Run]) -> list[Run]:
    """The moving averages that a run is held against: of the same recipe and, where there is one, the same seed."""
    if run.smoothing is None:  # nothing is known of any recipe: the first run
        return [runs[0]] if run is not runs[0] and not any(other.training for other in runs) else []
    if run.kind == "TMA":
        return []
    averages = [other for other in runs if other.recipe == run.recipe and other.kind == "TMA"]
    averages.sort(key=lambda other: other.seed_key != run.seed_key)
    usual = [other for other in averages if other.smoothing and other.smoothing.momentum == run.smoothing.momentum]
    matched = [other for other in averages if key_of(other) == control_key(run)]
    found = [*(usual or averages)[:1], *matched[:1]]
    return list({other.name: other for other in found}.values())


def _seen(result: CorruptionResult, entry: Mapping[str, Any]) -> tuple[object, ...]:
    """What two results must share to be compared: images, cells, and how the probe was trained and fed."""
    return *result.shown, frozenset(result.accuracies), text_of(entry, "protocol", "data")


def _difference_figure(difference: CorruptionDifference) -> Figure:
    bars = [
        Bar(name.replace("_", " "), value.value, value.low, value.high, group)
        for group, members in ALL_GROUPS.items()
        for name in members
        if (value := difference.corruptions.get(name)) is not None
    ]
    levels = [Bar(f"severity {s}", v.value, v.low, v.high) for s, v in difference.severities.items()]
    mean = difference.mean
    levels.append(Bar("mean", mean.value, mean.low, mean.high, "mean"))
    label = "difference of top-1, percentage points"
    drawings = [
        ("By corruption", bar_chart(bars, label=f"{label} by corruption", x_label=label)),
        ("By severity", bar_chart(levels, label=f"{label} by severity", x_label=label)),
    ]
    rows: list[list[TableValue]] = [[bar.name, Delta(bar.value, 2, bar.low, bar.high)] for bar in (*bars, *levels)]
    caption = f"{difference.first} minus {difference.second}"
    if mean.low is None:
        note = "No intervals: the outcomes of single images were not kept."
    else:
        note = f"Whiskers: {difference.confidence:.0%} intervals by a paired bootstrap over images, of one run each: "
        note += "they say nothing about other seeds."
    return Figure(caption, drawings, table=numeric_table(["", "difference"], rows), note=note)
