"""Plots as hand-written SVG: no dependency, sharp at every size, coloured by the page's style sheet.

Colours are CSS variables (`--ink`, `--grid`, `--series-1` ...), so that one drawing serves light and dark pages;
`standalone` adds them to an SVG that is to be looked at on its own. All text is escaped here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from sts_eval.report.charts.scales import Scale, linear_scale, log_scale, tick_text

NUM_COLOURS = 8
WIDTH = 430.0


@dataclass(frozen=True)
class Series:
    """One line of a chart."""

    name: str
    points: tuple[tuple[float, float], ...]
    """(x, y), in order of x."""
    colour: int = 1
    """1 to `NUM_COLOURS`; 0 is a quiet grey."""


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def text(x: float, y: float, content: str, *, anchor: str = "middle", css: str = "tick", turn: bool = False) -> str:
    """A text element; `turn` rotates it by 90 degrees to the left."""
    rotation = f' transform="rotate(-90 {_number(x)} {_number(y)})"' if turn else ""
    place = f'x="{_number(x)}" y="{_number(y)}" text-anchor="{anchor}"'
    return f'<text class="{css}" {place}{rotation}>{escape(content)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    """A straight line."""
    ends = " ".join(f'{name}="{_number(v)}"' for name, v in (("x1", x1), ("y1", y1), ("x2", x2), ("y2", y2)))
    return f'<line class="{css}" {ends}/>'


def drawing(width: float, height: float, label: str, parts: Sequence[str]) -> str:
    """The svg element, in proportion to the place it has on the page."""
    box = f'viewBox="0 0 {_number(width)} {_number(height)}"'
    # Text stays readable: never much larger than drawn, and a wide drawing scrolls rather than shrinks.
    size = f"max-width:{width * 1.2:.0f}px;min-width:{min(width * 0.72, width - 80):.0f}px"
    style = f'class="chart" style="{size}" role="img" aria-label="{escape(label)}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box} {style}>'
    return head + "".join(parts) + "</svg>"


@dataclass(frozen=True)
class Frame:
    """The rectangle into which data is drawn, and its two scales."""

    left: float
    top: float
    width: float
    height: float
    x: Scale
    y: Scale

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where a data point is on the drawing."""
        return self.left + self.x.position(x) * self.width, self.top + (1 - self.y.position(y)) * self.height

    def axes(self, x_label: str, y_label: str) -> list[str]:
        """Grid lines, tick labels and the names of the axes."""
        right, bottom = self.left + self.width, self.top + self.height
        parts = []
        for tick in self.y.ticks:
            height = self.at(self.x.low, tick)[1]
            parts.append(line(self.left, height, right, height, "grid"))
            parts.append(text(self.left - 7, height + 4, tick_text(tick, self.y), anchor="end"))
        for tick in self.x.ticks:
            place = self.at(tick, self.y.low)[0]
            parts.append(line(place, bottom, place, bottom + 4, "axis"))
            parts.append(text(place, bottom + 18, tick_text(tick, self.x)))
        parts.append(line(self.left, bottom, right, bottom, "axis"))
        parts.append(text((self.left + right) / 2, bottom + 36, x_label, css="label"))
        if y_label:
            parts.append(text(14, (self.top + bottom) / 2, y_label, css="label", turn=True))
        return parts


def line_chart(
    series: Sequence[Series],
    *,
    label: str,
    x_label: str,
    y_label: str = "",
    log_y: bool = False,
    markers: bool = False,
    x_ticks: Sequence[float] | None = None,
    height: float = 270,
) -> str:
    """Lines over one x axis; points that are not finite (or not positive on a log scale) leave a gap."""
    kept = [[p for p in s.points if _drawable(p, log_y)] for s in series]
    xs, ys = [x for points in kept for x, _ in points], [y for points in kept for _, y in points]
    if not xs:
        raise ValueError(f"the chart {label!r} has no point to draw")
    x_scale = linear_scale(min(xs), max(xs), ticks=x_ticks, tight=True)
    y_scale = log_scale(min(ys), max(ys)) if log_y else linear_scale(min(ys), max(ys))
    widest = max(len(tick_text(tick, y_scale)) for tick in y_scale.ticks)
    left = (22 if y_label else 4) + 9 + 7.2 * widest
    frame = Frame(left, 12, WIDTH - left - 14, height - 12 - 46, x_scale, y_scale)
    parts = frame.axes(x_label, y_label)
    for item in sorted(series, key=lambda s: s.colour != 0):  # the quiet ones first, beneath
        parts += _draw_series(item, frame, log_y=log_y, markers=markers)
    return drawing(WIDTH, height, label, parts)


def _drawable(point: tuple[float, float], log_y: bool) -> bool:
    return all(math.isfinite(v) for v in point) and (point[1] > 0 or not log_y)


def _draw_series(series: Series, frame: Frame, *, log_y: bool, markers: bool) -> list[str]:
    css = f"s{series.colour}"
    parts, path, pen_down = [], [], False
    for point in series.points:
        if not _drawable(point, log_y):
            pen_down = False
            continue
        x, y = frame.at(*point)
        path.append(f"{'L' if pen_down else 'M'}{_number(x)} {_number(y)}")
        pen_down = True
        if markers:
            what = f"{series.name}: {point[1]:.4g} at {point[0]:.4g}"
            dot = f'<circle class="dot {css}" cx="{_number(x)}" cy="{_number(y)}" r="3.5">'
            parts.append(f"{dot}<title>{escape(what)}</title></circle>")
    stroke = f'<path class="line {css}" d="{"".join(path)}"><title>{escape(series.name)}</title></path>'
    return [stroke, *parts]


@dataclass(frozen=True)
class Bar:
    """One horizontal bar, with an interval where there is one."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    group: str = ""


def bar_chart(bars: Sequence[Bar], *, label: str, x_label: str, name_width: float = 128) -> str:
    """Bars to both sides of zero, by group, with whiskers; the value is printed at the end."""
    row, gap, top = 21.0, 12.0, 10.0
    ends = [v for bar in bars for v in (bar.value, bar.low, bar.high) if v is not None]
    scale = linear_scale(min(0.0, *ends), max(0.0, *ends))
    groups = sum(1 for a, b in pairwise(bars) if a.group != b.group)
    body = row * len(bars) + gap * groups
    frame = Frame(name_width, top, WIDTH - name_width - 62, body, scale, linear_scale(0, 1))
    parts = []
    for tick in scale.ticks:
        place = frame.at(tick, 0)[0]
        parts.append(line(place, top, place, top + body, "axis" if tick == 0 else "grid"))
        parts.append(text(place, top + body + 17, tick_text(tick, scale)))
    y = top
    for index, bar in enumerate(bars):
        y += gap if index and bars[index - 1].group != bar.group else 0
        parts += _draw_bar(bar, frame, y, row)
        y += row
    parts.append(text(frame.left + frame.width / 2, top + body + 35, x_label, css="label"))
    return drawing(WIDTH, top + body + 46, label, parts)


def _draw_bar(bar: Bar, frame: Frame, y: float, row: float) -> list[str]:
    zero, end, middle = frame.at(0, 0)[0], frame.at(bar.value, 0)[0], y + row / 2
    known = bar.low is not None and bar.high is not None and not bar.low <= 0 <= bar.high
    css = "even" if not known else "gain" if bar.value >= 0 else "loss"
    box = f'x="{_number(min(zero, end))}" y="{_number(y + 3)}" width="{_number(abs(end - zero))}"'
    interval = "" if bar.low is None or bar.high is None else f" [{bar.low:+.2f}, {bar.high:+.2f}]"
    title = f"<title>{escape(f'{bar.name}: {bar.value:+.2f}{interval}')}</title>"
    parts = [
        text(frame.left - 8, middle + 4, bar.name, anchor="end"),
        f'<rect class="bar {css}" {box} height="{_number(row - 6)}" rx="2">{title}</rect>',
    ]
    if bar.low is not None and bar.high is not None:
        low, high = frame.at(bar.low, 0)[0], frame.at(bar.high, 0)[0]
        parts.append(line(low, middle, high, middle, "whisker"))
        parts += [line(x, middle - 3.5, x, middle + 3.5, "whisker") for x in (low, high)]
    parts.append(text(WIDTH - 6, middle + 4, f"{bar.value:+.2f}", anchor="end", css="value"))
    return parts


def dot_plot(
    rows: Sequence[tuple[str, str]], series: Sequence[Series], *, label: str, x_label: str, name_width: float = 128
) -> str:
    """One row per (name, group) with a dot for each series, whose points are (row index, value)."""
    height, gap, top = 21.0, 12.0, 10.0
    values = [value for item in series for _, value in item.points]
    scale = linear_scale(min(values), max(values))
    tops, y = [], top
    for index, (_, group) in enumerate(rows):
        y += gap if index and rows[index - 1][1] != group else 0
        tops.append(y)
        y += height
    frame = Frame(name_width, top, WIDTH - name_width - 20, y - top, scale, linear_scale(0, 1))
    parts = [line(frame.at(tick, 0)[0], top, frame.at(tick, 0)[0], y, "grid") for tick in scale.ticks]
    parts += [text(frame.at(tick, 0)[0], y + 17, tick_text(tick, scale)) for tick in scale.ticks]
    for (name, _), place in zip(rows, tops, strict=True):
        parts.append(text(frame.left - 8, place + height / 2 + 4, name, anchor="end"))
        parts.append(line(frame.left, place + height / 2, frame.left + frame.width, place + height / 2, "rule"))
    for item in sorted(series, key=lambda s: s.colour != 0):
        for row, value in item.points:
            x, middle = frame.at(value, 0)[0], tops[int(row)] + height / 2
            title = f"<title>{escape(f'{item.name}, {rows[int(row)][0]}: {value:.2f}')}</title>"
            dot = f'<circle class="dot s{item.colour}" cx="{_number(x)}" cy="{_number(middle)}" r="4.5">'
            parts.append(f"{dot}{title}</circle>")
    parts.append(text(frame.left + frame.width / 2, y + 35, x_label, css="label"))
    return drawing(WIDTH, y + 46, label, parts)
