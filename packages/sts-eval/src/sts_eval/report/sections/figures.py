"""The sections of a report that are drawn: the p x m plane, drift and training curves."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from sts_core import effective_momentum
from sts_eval.report.blocks import (
    EFFECTIVE_MOMENTUM,
    TIMES,
    Code,
    Figure,
    LegendEntry,
    Section,
    TableValue,
    numeric_table,
    percent,
    sentence,
)
from sts_eval.report.charts.heat_map import Cell, colour_range, heat_map
from sts_eval.report.charts.svg import NUM_COLOURS, Series, line_chart
from sts_eval.report.headline import Measure, headline
from sts_eval.report.runs import Run, is_measured, smoothing_label
from sts_eval.report.settings import ONE_SEED
from sts_eval.runs.drift import DRIFT

LEAST_CELLS = 6
"""Distinct (p, m) from which on a plane is worth drawing, if they fill half of its grid."""
MAX_POINTS = 400
"""Points a drawn line has at most; longer records are averaged in windows."""
CURVES = ("loss", "accuracy", "mask_rate", "feature_std", "effective_rank", "images_per_second")
"""Metrics in the order of interest; others follow by name."""
MAX_CURVES = 9
NOT_CURVES = (
    *("step", "epoch", "parameter_drift", "output_drift"),
    *("preserve_probability", "momentum", "learning_rate", "num_updates"),
)
"""Places on an axis, what has a figure of its own, and schedules, which the config tells."""


def colours_of(runs: Sequence[Run]) -> dict[str, int]:
    """A colour for each run; of many, the best by the headline measure get one and the rest stay grey."""
    measure = headline(runs)
    order = sorted(runs, key=lambda run: -(measure.of(run) or 0.0)) if measure and len(runs) > NUM_COLOURS else runs
    chosen = {run.name for run in order[:NUM_COLOURS]}
    coloured = [run.name for run in runs if run.name in chosen]
    return {run.name: coloured.index(run.name) + 1 if run.name in chosen else 0 for run in runs}


def legend_of(runs: Sequence[Run], colours: Mapping[str, int]) -> list[LegendEntry]:
    """The coloured runs by name, and one entry for the grey ones."""
    entries = [LegendEntry(run.name, colours[run.name]) for run in runs if colours[run.name]]
    quiet = sum(1 for run in runs if not colours[run.name])
    return [*entries, LegendEntry(f"{quiet} more run{'s' * (quiet > 1)}", 0)] if quiet else entries


def plane_section(runs: Sequence[Run]) -> Section | None:
    """Accuracy over the p x m plane, one map per recipe and granularity, seeds averaged."""
    measure = headline(runs)
    if measure is None:
        return None
    recipes = dict.fromkeys(run.recipe for run in runs)
    figures = [plane for recipe in recipes for plane in _planes([r for r in runs if r.recipe == recipe], measure)]
    return Section("plane", f"The p {TIMES} m plane", figures, f"p {TIMES} m") if figures else None


def _planes(runs: Sequence[Run], measure: Measure) -> list[Figure]:
    """The maps of runs that share a recipe."""
    planes: dict[str, dict[tuple[float, float], dict[int | str, float]]] = {}
    known = [(run, run.smoothing, measure.of(run)) for run in runs]
    granularities = {s.granularity for _, s, v in known if s and v is not None and s.preserve_probability > 0}
    for run, smoothing, value in known:
        if smoothing is None or value is None or smoothing.preserve_probability >= 1:
            continue
        shared = smoothing.preserve_probability == 0  # a moving average belongs to the plane of every granularity
        key = (smoothing.preserve_probability, smoothing.momentum)
        for granularity in granularities if shared else {smoothing.granularity}:
            planes.setdefault(granularity, {}).setdefault(key, {})[run.seed_key] = value
    return [_plane(name, cells, measure, runs[0].name) for name, cells in planes.items() if _is_plane(cells)]


def _is_plane(cells: Iterable[tuple[float, float]]) -> bool:
    found = set(cells)
    num_ps, num_ms = len({p for p, _ in found}), len({m for _, m in found})
    return len(found) >= LEAST_CELLS and min(num_ps, num_ms) > 1 and 2 * len(found) >= num_ps * num_ms


def _plane(
    granularity: str, values: Mapping[tuple[float, float], Mapping[Any, float]], measure: Measure, example: str
) -> Figure:
    cells = {key: Cell(fmean(found.values()), len(found)) for key, found in values.items()}
    ps, ms = sorted({p for p, _ in cells}), sorted({m for _, m in cells})
    rows: list[list[TableValue]] = [
        [f"m {m:g}", *(percent(cells[p, m].value) if (p, m) in cells else None for p in ps)] for m in reversed(ms)
    ]
    low, high = colour_range([cell.value for cell in cells.values()])
    best = max(cells, key=lambda key: cells[key].value)
    effective = effective_momentum(momentum=best[1], preserve_probability=best[0])
    seeds = ONE_SEED if cells[best].num_runs == 1 else f"{cells[best].num_runs} seeds"
    caption = f"{measure.title}, in percent, by p and m ({granularity}-wise units)"
    note = (
        f"Lines join equal {EFFECTIVE_MOMENTUM}, labelled with it. Colours run from {low:.1f} (and less) to "
        f"{high:.1f}. Highest: {cells[best].value:.2f} at p {best[0]:g}, m {best[1]:g} "
        f"(m_eff {effective:.6g}; {seeds}). "
        f"All runs share the recipe of {example}."
    )
    drawn = heat_map(cells, label=caption)
    table = numeric_table(["", *(f"p {p:g}" for p in ps)], rows)
    return Figure(sentence(caption), [("", drawn)], table=table, note=note)


def drift_section(runs: Sequence[Run]) -> Section | None:
    """The paper's smoothing figure: how far the teacher moves from epoch to epoch, in weights and in outputs."""
    curves = {run.name: _drift(run) for run in runs}
    kept = [run for run in runs if curves[run.name]]
    if not kept:
        return None
    colours = colours_of(runs)
    drawings = []
    for place, (heading, label) in enumerate((("Weights", "MSE of weights"), ("Outputs", "MSE of outputs")), start=1):
        lines = [
            Series(run.name, tuple((point[0], point[place]) for point in curves[run.name]), colours[run.name])
            for run in kept
        ]
        if any(y > 0 for line in lines for _, y in line.points):
            drawings.append(
                (heading, line_chart(lines, label=label, x_label="epoch", y_label=label, log_y=True, markers=True))
            )
    if not drawings:
        return None
    rows: list[list[TableValue]] = []
    for run in kept:
        first, last = curves[run.name][0], curves[run.name][-1]
        numbers = [f"{value:.3g}" for value in (first[1], last[1], first[2], last[2])]
        rows.append([Code(run.name), smoothing_label(run.smoothing), *numbers])
    header = ["run", "smoothing", "weights, first", "weights, last", "outputs, first", "outputs, last"]
    caption = "Mean squared difference between the teachers of adjacent epochs"
    figure = Figure(caption, drawings, legend_of(kept, colours), numeric_table(header, rows))
    return Section("drift", "Teacher dynamics", [figure], "Drift")


def _drift(run: Run) -> list[tuple[float, float, float]]:
    """(epoch, weights, outputs) from metrics.jsonl, or from the drift entries of results.json."""
    logged = [
        (float(line["epoch"]), float(line["parameter_drift"]), float(line["output_drift"]))
        for line in run.metrics
        if line.get("epoch") is not None and None not in (line.get("parameter_drift"), line.get("output_drift"))
    ]
    if logged:
        return sorted(logged)
    found: dict[float, dict[str, float]] = {}
    for entry in run.entries:
        if entry["evaluation"] == DRIFT.name and "epoch" in entry:
            found.setdefault(float(entry["epoch"]), {})[str(entry["metric"])] = float(entry["value"])
    return [
        (epoch, values["weights-mse"], values["outputs-mse"])
        for epoch, values in sorted(found.items())
        if {"weights-mse", "outputs-mse"} <= set(values)
    ]


def thinned(points: Sequence[tuple[float, float]], limit: int = MAX_POINTS) -> tuple[tuple[float, float], ...]:
    """At most `limit` points: means over consecutive windows of equal length, ends kept."""
    if len(points) <= limit:
        return tuple(points)
    size = -(-len(points) // (limit - 2))
    inner = points[1:-1]
    windows = [inner[start : start + size] for start in range(0, len(inner), size)]
    means = [(fmean(x for x, _ in window), fmean(y for _, y in window)) for window in windows]
    return (points[0], *means, points[-1])


def curves_section(runs: Sequence[Run]) -> Section | None:
    """Loss and other metrics over the steps of training."""
    known = dict.fromkeys(name for run in runs for line in run.metrics for name in line if not is_measured(name))
    names = [name for name in (*CURVES, *sorted(known)) if name in known and name not in NOT_CURVES]
    kept = [run for run in runs if run.metrics]
    colours = colours_of(runs)
    drawings: list[tuple[str, str]] = []
    for name in dict.fromkeys(names):
        lines = [Series(run.name, thinned(run.series(name)), colours[run.name]) for run in kept]
        lines = [line for line in lines if len(line.points) > 1]
        if lines and len(drawings) < MAX_CURVES:
            title = name.replace("_", " ")
            drawings.append((title, line_chart(lines, label=title, x_label="step")))
    if not drawings:
        return None
    rows: list[list[TableValue]] = []
    for run in kept:
        losses = run.series("loss")
        last = f"{losses[-1][1]:.4g}" if losses else None
        steps = max((int(line["step"]) for line in run.metrics if "step" in line), default=0)
        rows.append([Code(run.name), f"{steps:,}", last])
    table = numeric_table(["run", "steps", "last loss"], rows)
    figure = Figure("Metrics over the steps of training", drawings, legend_of(kept, colours), table)
    return Section("curves", "Training curves", [figure], "Training")
