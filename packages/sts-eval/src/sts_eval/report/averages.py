"""A page about many teachers of one run: a table at the end, and how each came there."""

from collections.abc import Sequence
from pathlib import Path

from sts_core import ConfigError
from sts_core.files import write_atomically
from sts_eval.report.blocks import (
    EFFECTIVE_MOMENTUM,
    Delta,
    Fact,
    Figure,
    LegendEntry,
    Report,
    Section,
    Table,
    TableValue,
    numeric_table,
    sentence,
)
from sts_eval.report.charts.svg import NUM_COLOURS, Series, line_chart
from sts_eval.report.html import to_html
from sts_eval.report.markdown import to_markdown
from sts_eval.report.settings import ONE_SEED
from sts_eval.runs.averages import Average, Averages, read_averages


def write_averages_report(
    path: str | Path, folder: str | Path, *, title: str = "Averages of one run"
) -> tuple[Path, Path]:
    """Write report.md and report.html into `folder` about the record `path` that a `BankRecord` kept.

    The table has all networks after the last measurement, with the difference of each that moves in fragments to its
    control, the moving average that follows the student as fast; the plot has all measurements. Returns the two files.
    """
    found = read_averages(path)
    place = Path(folder)
    if place.is_file():
        raise ConfigError(f"a report is written into a folder, {place} is a file: name another place")
    report = averages_report(found, title=title)
    for name, content in {"report.md": to_markdown(report), "report.html": to_html(report)}.items():
        write_atomically(place / name, content)
    return place / "report.md", place / "report.html"


def averages_report(found: Averages, *, title: str) -> Report:
    """The page as values."""
    teachers = len(found.networks) - 1
    facts = [
        Fact("teachers", str(teachers), "of one student, in one run"),
        Fact("updates", f"{found.steps[-1]:,}", f"measured {len(found.steps)} times"),
    ]
    sections = [Section("table", "After the last measurement", [_table(found)])]
    if len(found.steps) > 1:
        sections.append(Section("plot", "On the way", [_figure(found, metric) for metric in found.metrics]))
    return Report(title, facts, sections)


def _table(found: Averages) -> Table:
    metrics = found.metrics
    header = ["network", "m", "p", "units", "m_eff", *metrics, *(f"{metric}, to its control" for metric in metrics)]
    note = (
        f"{sentence(ONE_SEED)}; a difference may be the seed's. {EFFECTIVE_MOMENTUM}; the control of a teacher that "
        f"moves in fragments is the moving average of its m_eff. All were measured after the same update; none was "
        f"chosen by what was measured."
    )
    return numeric_table(header, [_row(found, network) for network in found.networks], "", note)


def _row(found: Averages, network: Average) -> list[TableValue]:
    config, control = network.config, found.control(network)
    how: list[TableValue] = [None] * 4
    if config is not None:
        units = f"{config.granularity}s" if config.preserve_probability else "all at once"
        how = [f"{config.momentum:g}", f"{config.preserve_probability:g}", units, f"{config.effective_momentum:.6g}"]
    values: list[TableValue] = [_text(network.last(metric)) for metric in found.metrics]
    return [network.name, *how, *values, *(_difference(network, control, metric) for metric in found.metrics)]


def _text(value: float | None) -> str | None:
    return None if value is None else f"{value:.5g}"


def _difference(network: Average, control: Average | None, metric: str) -> Delta | None:
    mine, other = network.last(metric), None if control is None else control.last(metric)
    if mine is None or other is None:
        return None
    decimals = max(2, 4 - len(f"{abs(other):.0f}"))
    return Delta(mine - other, decimals, remark=ONE_SEED)


def _figure(found: Averages, metric: str) -> Figure:
    colours = {n.name: 0 if n.config is None else 1 + (k - 1) % NUM_COLOURS for k, n in enumerate(found.networks)}
    series = [Series(n.name, n.values.get(metric, ()), colours[n.name]) for n in found.networks]
    drawn = line_chart([s for s in series if s.points], label=metric, x_label="updates", y_label=metric, markers=True)
    legend = [LegendEntry(s.name, s.colour) for s in series if s.points]
    return Figure(sentence(metric), [("", drawn)], legend, _data(found, series))


def _data(found: Averages, series: Sequence[Series]) -> Table:
    points = {s.name: dict(s.points) for s in series}
    rows = [[f"{step:,}", *(_text(points[s.name].get(step)) for s in series)] for step in found.steps]
    return numeric_table(["updates", *(s.name for s in series)], rows)
