"""The figures of a study's report, as SVG files that bring their own colours."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from sts_core.files import write_atomically
from sts_eval import charts
from sts_pipelines.study.claims import SELF_SUPERVISED, TITLES, Finding
from sts_pipelines.study.outcomes import Outcomes, summary
from sts_pipelines.study.small import GRID_MOMENTA, GRID_PROBABILITIES

COLOURS = {"none": 2, "tma": 1, "se-layer": 3, "sts": 4, "control": 5, "se-channel": 6, "se-neuron": 7}
LEGEND_ROW = 18.0


def write_figures(outcomes: Outcomes, findings: Sequence[Finding], folder: Path) -> list[tuple[str, str]]:
    """Draw all figures that the results suffice for; file name and caption of each."""
    drawn: list[tuple[str, str, str]] = []
    gains = list(_gains(findings))
    if gains:
        label = "STS against TMA and against TMA(m_eff)"
        svg = charts.bar_chart(gains, label=label, x_label="points of top-1, 95 % intervals", name_width=215)
        drawn.append(
            ("sts-gain.svg", "STS against TMA, and against TMA of the same expected pull: teacher's top-1", svg)
        )
    cells = _cells(outcomes)
    if cells:
        caption = "BYOL on digits over the p x m plane: linear top-1 of the teacher"
        drawn.append(("p-by-m.svg", caption, charts.heat_map(cells, label=caption)))
    for experiment, setting in SELF_SUPERVISED.items():
        for part, what in ((1, "weights"), (2, "outputs")):
            chart = _drift(outcomes, experiment, part, what)
            if chart is not None:
                caption = f"{setting}: mean squared change of the teacher's {what} from epoch to epoch"
                drawn.append((f"drift-{experiment}-{what}.svg", caption, chart))
    for name, _, svg in drawn:
        write_atomically(folder / name, charts.standalone(svg) + "\n")
    return [(name, caption) for name, caption, _ in drawn]


def _gains(findings: Sequence[Finding]) -> Iterable[charts.Bar]:
    for found in findings:
        if found.comparison in ("STS - TMA", "STS - TMA(m_eff)") and found.unit == "points":
            labels = " (teacher labels)" if "teacher labels" in found.claim else ""
            corrupted = " (corrupted)" if "robust" in found.claim else ""
            name = f"{found.setting.replace('FixMatch', 'FM')}{labels}{corrupted}"
            against = "TMA" if found.comparison == "STS - TMA" else "m_eff"
            yield charts.Bar(f"{name} - {against}", found.effect.mean, found.effect.low, found.effect.high, group=name)


def _cells(outcomes: Outcomes) -> dict[tuple[float, float], charts.Cell]:
    cells = {}
    for m in GRID_MOMENTA:
        for p in GRID_PROBABILITIES:
            found = summary(outcomes.values("byol-digits-grid", f"m{m:g}-p{p:g}", "linear/teacher"))
            if found is not None:
                cells[p, m] = charts.Cell(found.mean, found.count)
    return cells if len(cells) == len(GRID_MOMENTA) * len(GRID_PROBABILITIES) else {}


def _drift(outcomes: Outcomes, experiment: str, part: int, what: str) -> str | None:
    series = [
        charts.Series(TITLES[teacher], tuple(outcomes.drift_curve(experiment, teacher, part)), COLOURS[teacher])
        for teacher in outcomes.teachers(experiment)
        if teacher in ("none", "tma", "se-layer", "sts", "control")
    ]
    series = [item for item in series if item.points]
    if not series:
        return None
    label = f"MSE of {what}"
    svg = charts.line_chart(series, label=label, x_label="epoch", y_label=label, log_y=True, markers=True)
    return with_legend(svg, series)


def with_legend(svg: str, series: Sequence[charts.Series]) -> str:
    """The chart with one more row below that names its colours."""
    found = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    assert found is not None, "every drawing has a viewBox"
    width, height = float(found[1]), float(found[2])
    step = width / len(series)
    parts = []
    for place, item in enumerate(series):
        x, y = step * place + 14, height + LEGEND_ROW / 2
        parts.append(f'<circle class="dot s{item.colour}" cx="{x:g}" cy="{y:g}" r="4.5"/>')
        parts.append(charts.text(x + 9, y + 4, item.name, anchor="start"))
    taller = svg.replace(found[0], f'viewBox="0 0 {found[1]} {height + LEGEND_ROW + 4:g}"', 1)
    return taller.removesuffix("</svg>") + "".join(parts) + "</svg>"
