"""The figures of a study's report, as SVG files that bring their own colours."""

import re
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from sts_core.files import write_atomically
from sts_eval import charts
from sts_pipelines.study.verdicts import Finding

LEGEND_ROW = 18.0
WIDTH, LEFT, RIGHT, ROW, TOP = 860.0, 300.0, 560.0, 20.0, 26.0
FARTHEST = 6.0
"""Margins that the axis has to either side at most."""
DOTS = {"holds": 3, "does not hold": 2, "equivalent within the margin": 1, "cannot be told": 0, "interim": 0}


def write_forest_plots(findings: Sequence[Finding], folder: Path) -> dict[str, str]:
    """One figure for each claim, and forest.svg with all; file names by claim."""
    write_atomically(folder / "forest.svg", charts.standalone(forest_plot(findings, "All comparisons")) + "\n")
    claims: dict[str, list[Finding]] = {}
    for found in findings:
        claims.setdefault(found.comparison.claim, []).append(found)
    names = {}
    for claim, rows in claims.items():
        names[claim] = f"forest-{re.sub(r'[^a-z0-9]+', '-', claim.lower()).strip('-')}.svg"
        write_atomically(folder / names[claim], charts.standalone(forest_plot(rows, claim)) + "\n")
    return names


def forest_plot(findings: Sequence[Finding], title: str) -> str:
    """A row each: setting and difference, mean with its 95 % interval above the margin, and the verdict in words.

    Effects are drawn in margins, so that rows of different units share an axis; the numbers are in their own units.
    What is beyond the axis is drawn at its end.
    """
    reach = min(FARTHEST, max(2.0, *(_reach(found) for found in findings)) * 1.05)
    bottom = TOP + ROW * len(findings)

    def place(margins: float) -> float:
        return (LEFT + RIGHT) / 2 + max(-1.0, min(1.0, margins / reach)) * (RIGHT - LEFT) / 2

    band = f'x="{place(-1):.1f}" y="{TOP:g}" width="{place(1) - place(-1):.1f}" height="{bottom - TOP:g}"'
    parts = [
        charts.text(8, 16, title, anchor="start", css="label"),
        f'<rect fill="#888" fill-opacity=".18" {band}/>',
        f'<line class="axis" x1="{place(0):.1f}" y1="{TOP:g}" x2="{place(0):.1f}" y2="{bottom:g}"/>',
        charts.text(place(0), bottom + 16, "0"),
        *(charts.text(place(side), bottom + 16, f"{side:+d} margin") for side in (-1, 1) if reach < 4),
    ]
    for row, found in enumerate(findings):
        parts += _draw(found, place, TOP + ROW * (row + 0.5))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {bottom + 24:g}" class="chart" role="img"'
    return f'{head} aria-label="{escape(title)}">' + "".join(parts) + "</svg>"


def _reach(found: Finding) -> float:
    effect = found.effect
    ends = (effect.mean, effect.mean if effect.low is None else effect.low, effect.high or effect.mean)
    return max(abs(end) for end in ends) / found.comparison.margin


def _draw(found: Finding, place: Callable[[float], float], y: float) -> list[str]:
    comparison, effect = found.comparison, found.effect
    decimals = 1 if comparison.unit == "points" else 2
    shown = f"{effect.mean:+.{decimals}f}"
    parts = [charts.text(LEFT - 8, y + 4, f"{comparison.setting}: {comparison.difference}", anchor="end")]
    if effect.low is not None and effect.high is not None:
        ends = [place(end / comparison.margin) for end in (effect.low, effect.high)]
        parts.append(f'<line class="whisker" x1="{ends[0]:.1f}" y1="{y:g}" x2="{ends[1]:.1f}" y2="{y:g}"/>')
        shown += f" [{effect.low:+.{decimals}f}, {effect.high:+.{decimals}f}]"
    x = place(effect.mean / comparison.margin)
    parts.append(f'<circle class="dot s{DOTS[found.verdict]}" cx="{x:.1f}" cy="{y:g}" r="4.5"/>')
    words = (
        f"{found.effect.count} of {found.planned} seeds"
        if found.verdict == "interim"
        else found.verdict.removesuffix(" the margin")
    )
    parts.append(charts.text(RIGHT + 8, y + 4, f"{shown} {words}", anchor="start", css="tick"))
    return parts


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
