"""The sections of a report that are tables: runs, results, costs, config differences."""

import json
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from sts_eval.evaluations import Evaluation, evaluation_called, registered_evaluations
from sts_eval.intervals import estimate
from sts_eval.paper.comparison import with_conditions
from sts_eval.paper.numbers import published_rows
from sts_eval.report.blocks import (
    EFFECTIVE_MOMENTUM,
    TIMES,
    Block,
    Code,
    Notes,
    Paragraph,
    Section,
    Table,
    TableValue,
    percent,
    sentence,
)
from sts_eval.report.headline import headline, label_of, networks_of, variant_of
from sts_eval.report.runs import GRANULARITY_SHORT, Run, smoothing_label
from sts_eval.report.settings import control_key, control_of, key_of, settings_of

MAX_ALONE = 6
"""Runs without a control that are listed."""
MANY_RUNS = 6
"""Beyond this many, config differences are set with one row, not one column, per run."""


def overview_section(runs: Sequence[Run]) -> Section:
    """Which runs the report is about."""
    measure = headline(runs)
    header = ["run", "smoothing", "m_eff", "method", "length", "seed"]
    rows: list[list[TableValue]] = []
    for run in runs:
        smoothing, method = run.smoothing, run.training.get("conditions", {}).get("method")
        effective = None if smoothing is None else f"{smoothing.effective_momentum:.6g}"
        facts = [smoothing_label(smoothing), effective, method, run.training.get("length")]
        rows.append([Code(run.name), *facts, None if run.seed is None else str(run.seed)])
    note = ""
    if measure is not None:
        header.insert(1, measure.metric.title)  # where a narrow screen shows it
        rows = [[row[0], percent(measure.of(run)), *row[1:]] for row, run in zip(rows, runs, strict=True)]
        note = f"{measure.metric.title}: {measure.title}, in percent. "
    note += f"{EFFECTIVE_MOMENTUM}, the moving average with the same expected pull."
    numeric = frozenset(i for i, name in enumerate(header) if i and name not in ("smoothing", "method", "length"))
    return Section("runs", "Runs", [Table(header, rows, note=note, numeric=numeric)])


def results_section(runs: Sequence[Run]) -> Section | None:
    """Every number of results.json that has no section of its own: all networks, last and best."""
    blocks: list[Block] = []
    for evaluation in (one for one in registered_evaluations() if not one.own_section):
        found = [(run, entry) for run in runs for entry in run.entries if entry["evaluation"] == evaluation.name]
        if found:
            blocks.append(_results_table(evaluation, found))
    return Section("results", "Results", blocks) if blocks else None


def _column(entry: Mapping[str, Any], label: str) -> str:
    evaluation = evaluation_called(entry["evaluation"])
    metric = evaluation.metric(str(entry["metric"])).title
    which = "" if evaluation.only_last else str(entry["which"])
    return ", ".join(part for part in (metric, which, label) if part)


def _results_table(evaluation: Evaluation, found: Sequence[tuple[Run, Mapping[str, Any]]]) -> Table:
    """A row per run and protocol of its probe (or backend of its detector), columns grouped by network.

    What all entries share, such as the protocol, stands below, where it takes no room from the numbers.
    """
    labels = list(dict.fromkeys(label_of(entry) for _, entry in found))
    shared = labels[0] if len(labels) == 1 else ""
    rowwise = evaluation.row if any(evaluation.row in entry for _, entry in found) else None
    table: dict[tuple[str, str, str], dict[tuple[str, str], dict[Any, float]]] = {}
    for run, entry in found:
        row = (run.name, variant_of(entry), label_of(entry)) if rowwise else (run.name, "", "")
        column = _column(entry, "" if shared or evaluation.row in entry else label_of(entry))
        by_seed = table.setdefault(row, {}).setdefault((str(entry["network"]), column), {})
        for trial, value in enumerate(entry.get("trials", [entry["value"]])):
            by_seed.setdefault((entry.get("seed"), trial), float(value))
    networks = networks_of(entry for _, entry in found)
    columns = list(dict.fromkeys(column for cells in table.values() for _, column in cells))
    keys = [(network, column) for network in networks for column in columns]
    names = ["run", *([rowwise] if rowwise and not shared else [])]
    rows = [
        [*(Code(name), label)[: len(names)], *(_over_trials(values.get(key)) for key in keys)]
        for (name, _, label), values in table.items()
    ]
    header = [*names, *(column for _, column in keys)]
    groups = [("", len(names)), *((network, len(columns)) for network in networks)]
    units = ", ".join(dict.fromkeys(metric.unit for metric in evaluation.metrics if metric.unit))
    known = ": ".join(text for text in (f"in {units}" if units else "", shared) if text)
    note = f"{sentence(known)}." if known else ""
    return Table(header, rows, evaluation.title, note, frozenset(range(len(names), len(header))), groups)


def _over_trials(values: Mapping[Any, float] | None) -> str | None:
    """One number, or the mean over the seeds of an evaluation (detection's fine-tunings) with its interval."""
    found = estimate(list(values.values())) if values else None
    return None if found is None else percent(found.mean) if found.count == 1 else str(found)


def control_section(runs: Sequence[Run]) -> Section | None:
    """Each STS or SE beside the moving average with the same expected pull: is it the spatial part that helps?"""
    measure = headline(runs)
    settings = settings_of(runs, measure) if measure else []
    known = {key_of(setting.run): setting for setting in settings if setting.run.training}
    rows: list[list[TableValue]] = []
    alone: list[Run] = []
    for setting in settings:
        key = control_key(setting.run)
        if key is None:
            continue
        if (control := known.get(key)) is None:
            alone.append(setting.run)
            continue
        sides = [f"{control.name}", str(setting.estimate), str(control.estimate)]
        rows.append([setting.name, setting.minus(control), *sides])
    if measure is None or not (rows or alone):
        return None
    blocks: list[Block] = []
    if rows:
        note = f"{sentence(measure.title)}, in percent. Intervals are 95 %, over seeds. The paper has no such control."
        header = ["smoothing", "difference", "control", "ours", "control's"]
        # The difference is set flush left, where a narrow screen shows it.
        blocks.append(Table(header, rows, note=note, numeric=frozenset({3, 4})))
    blocks += _without_control(alone)
    return Section("control", "Against the matched moving average", blocks, "Control")


def _without_control(runs: Sequence[Run]) -> list[Block]:
    """Runs of which nobody can say whether the spatial part helped, and what would tell."""
    if not runs:
        return []
    items = [(run.name, f"{smoothing_label(run.smoothing)}: {control_of(run)}") for run in runs[:MAX_ALONE]]
    left = len(runs) - len(items)
    more = f" ({left} more are not listed)" if left else ""
    text = f"Without their control, the moving average of the same m_eff, nothing is said about these runs{more}:"
    return [Paragraph(text), Notes(items)]


def granularity_section(runs: Sequence[Run], *, against_paper: bool) -> Section | None:
    """What finer units cost and bring: time relative to the moving average, and accuracy."""
    spatial = [run for run in runs if run.smoothing is not None and run.smoothing.preserve_probability > 0]
    if len({run.smoothing.granularity for run in spatial if run.smoothing}) < 2:
        return None
    recipes = {run.recipe for run in spatial}
    averages = {run.recipe: run for run in reversed(runs) if run.kind == "TMA" and run.recipe in recipes}
    measure = headline(runs)
    paper = published_rows("granularity") if against_paper and any(map(_is_of_the_table, spatial)) else {}
    header = ["smoothing", "run", "images/s", "time", *(["time, paper"] if paper else [])]
    header += ["top-1", *(["top-1, paper"] if paper else [])] if measure else []
    rows: list[list[TableValue]] = []
    for run in (*reversed(averages.values()), *spatial):
        assert run.smoothing is not None
        kind, speed = run.kind, _speed(run)
        base = _speed(averages[run.recipe]) if run.recipe in averages else None
        units = f" {GRANULARITY_SHORT[run.smoothing.granularity]}" if kind != "TMA" else ""
        numbers = paper.get(f"{kind}{units}", {}) if _is_of_the_table(run) else {}
        printed = {column: number.printed for column, number in numbers.items()}
        time = None if base is None or speed is None else f"{base / speed:.2f}{TIMES}"
        row: list[TableValue] = [smoothing_label(run.smoothing), Code(run.name)]
        row += [None if speed is None else f"{speed:.0f}", time]
        row += [f"{printed['time']}{TIMES}" if "time" in printed else None] if paper else []
        if measure:
            row += [percent(measure.of(run)), *([printed.get("top-1")] if paper else [])]
        rows.append(row)
    note = "Time per image relative to the moving average, by the median of images per second of all log lines."
    note += " The paper's are BYOL on ImageNet, 200 epochs." if paper else ""
    numeric = frozenset(range(2, len(header)))
    return Section(
        "granularity", "Cost of granularity", [Table(header, rows, note=note, numeric=numeric)], "Granularity"
    )


def _is_of_the_table(run: Run) -> bool:
    """Whether the paper's numbers are of such a training: BYOL on ImageNet, 200 epochs."""
    known = run.training.get("conditions", {})
    if run.results is not None:
        known = with_conditions(run.results, run.training, run.metrics).conditions
    return (known.get("method"), known.get("dataset"), known.get("epochs")) == ("byol", "imagenet", 200)


def _speed(run: Run) -> float | None:
    speeds = [value for _, value in run.series("images_per_second") if value > 0]
    return median(speeds) if speeds else None


def config_section(runs: Sequence[Run]) -> Section | None:
    """Settings in which the runs differ, by their dotted names."""
    configured = [run for run in runs if run.training.get("settings")]
    configs = [{name: _text(value) for name, value in run.training["settings"].items()} for run in configured]
    names = list(dict.fromkeys(name for config in configs for name in config if name != "name"))
    different = [name for name in names if len({config.get(name) for config in configs}) > 1]
    if len(configured) < 2 or not different:
        return None
    if len(configured) > MANY_RUNS:
        rows = [
            [Code(run.name), *(_setting(config, name) for name in different)]
            for run, config in zip(configured, configs, strict=True)
        ]
        table = Table(["run", *different], rows)
    else:
        rows = [[Code(name), *(_setting(config, name) for config in configs)] for name in different]
        table = Table(["setting", *(run.name for run in configured)], rows)
    same = len(names) - len(different)
    text = Paragraph(f"{len(different)} of {len(names)} settings differ; the other {same} are the same in all runs.")
    return Section("config", "Config differences", [text, table], "Config")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _setting(config: Mapping[str, str], name: str) -> TableValue:
    return Code(config[name]) if name in config else None
