"""The p x m plane: accuracy in each cell, with the lines along which the expected pull on the teacher is the same."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from statistics import median

from sts_core import effective_momentum
from sts_eval.report.charts.svg import drawing, text

# Dark to bright, each further from its neighbours to the eye than the last: readable in grey, on black and on white.
STOPS = ((48, 28, 76), (54, 82, 140), (38, 138, 152), (98, 190, 130), (232, 232, 150))
ISO_MOMENTA = (0.9, 0.97, 0.99, 0.997, 0.999, 0.9997, 0.9999)
CELL_WIDTH, CELL_HEIGHT = 62.0, 46.0
LABEL_SIZE = (52.0, 16.0)


@dataclass(frozen=True)
class Cell:
    """What is known about one (p, m)."""

    value: float
    """Mean over runs, in percent."""
    num_runs: int = 1


def colour_of(position: float) -> tuple[str, bool]:
    """The colour at `position` in [0, 1], and whether dark text is readable on it."""
    at = min(max(position, 0.0), 1.0) * (len(STOPS) - 1)
    index = min(int(at), len(STOPS) - 2)
    part = at - index
    red, green, blue = (round(a + part * (b - a)) for a, b in zip(STOPS[index], STOPS[index + 1], strict=True))
    return f"rgb({red},{green},{blue})", 0.2126 * red + 0.7152 * green + 0.0722 * blue > 140


def colour_range(values: Sequence[float]) -> tuple[float, float]:
    """Values at the two ends of the colours. Failed runs do not use up the scale: low >= high - 4 (high - median)."""
    high = max(values)
    return max(min(values), high - 4 * (high - median(values))), high


def pull_decades(momentum: float) -> float:
    """u = -log10(1 - m). With p alike, -log10(1 - m_eff) = u(p) + u(m): lines of equal m_eff are straight in u."""
    return -math.log10(1.0 - momentum)


def _place(decades: float, known: Sequence[float]) -> float:
    """Position in cells (centres at 0, 1, ...) of a value between those of the grid, linear in u between centres."""
    for index, (low, high) in enumerate(pairwise(known)):
        if decades <= high:
            return index + (decades - low) / (high - low)
    return float(len(known) - 1)


def iso_line(effective: float, ps: Sequence[float], ms: Sequence[float]) -> list[tuple[float, float]]:
    """Points (column, row) in cells with 1 - (1-p)(1-m) = effective, inside the hull of the cells' centres."""
    columns, rows = [pull_decades(p) for p in ps], [pull_decades(m) for m in ms]
    total = pull_decades(effective)
    low, high = max(columns[0], total - rows[-1]), min(columns[-1], total - rows[0])
    if low > high:
        return []
    corners = {low, high, *(u for u in columns if low < u < high), *(total - v for v in rows if low < total - v < high)}
    return [(_place(u, columns), _place(total - u, rows)) for u in sorted(corners)]


def heat_map(cells: Mapping[tuple[float, float], Cell], *, label: str, unit: str = "top-1, %") -> str:
    """An SVG of `cells`, keyed by (p, m), m upwards; a cell without a run is left open.

    p = 0 is the column of the moving averages, m = 0 the row of the spatial ensembles.
    """
    ps, ms = sorted({p for p, _ in cells}), sorted({m for _, m in cells})
    left, top, bottom = 66.0, 14.0, 50.0
    width, height = CELL_WIDTH * len(ps), CELL_HEIGHT * len(ms)
    ends = colour_range([cell.value for cell in cells.values()])
    shapes, numbers = [], []
    for column, p in enumerate(ps):
        for row, m in enumerate(ms):
            corner = (left + column * CELL_WIDTH, top + (len(ms) - 1 - row) * CELL_HEIGHT)
            shape, number = _draw_cell(cells.get((p, m)), (p, m), corner, ends)
            shapes.append(shape)
            numbers.append(number)
    axes = [text(left + (i + 0.5) * CELL_WIDTH, top + height + 18, f"{p:g}") for i, p in enumerate(ps)]
    axes += [
        text(left - 9, top + (len(ms) - i - 0.5) * CELL_HEIGHT + 4, f"{m:g}", anchor="end") for i, m in enumerate(ms)
    ]
    axes.append(text(left + width / 2, top + height + 38, "preserve probability p", css="label"))
    axes.append(text(16, top + height / 2, "momentum m", css="label", turn=True))
    lines = _draw_iso_lines(ps, ms, left, top)
    return drawing(left + width + 14, top + height + bottom, f"{label} ({unit})", [*shapes, *lines, *numbers, *axes])


def _draw_cell(
    cell: Cell | None, key: tuple[float, float], corner: tuple[float, float], ends: tuple[float, float]
) -> tuple[str, str]:
    """The coloured box, and the number that is drawn over the lines."""
    (x, y), (low, high) = corner, ends
    box = f'x="{x + 1:g}" y="{y + 1:g}" width="{CELL_WIDTH - 2:g}" height="{CELL_HEIGHT - 2:g}" rx="3"'
    name = f"p = {key[0]:g}, m = {key[1]:g}, m_eff = {effective_momentum(key[1], key[0]):.6g}"
    if cell is None:
        return f'<rect class="open" {box}><title>{escape(name)}: no run</title></rect>', ""
    colour, dark_text = colour_of((cell.value - low) / (high - low) if high > low else 0.5)
    runs = f" ({cell.num_runs} runs)" if cell.num_runs > 1 else ""
    title = f"<title>{escape(f'{name}: {cell.value:.2f}{runs}')}</title>"
    css = "cell-dark" if dark_text else "cell-light"
    number = text(x + CELL_WIDTH / 2, y + CELL_HEIGHT / 2 + 4.5, f"{cell.value:.1f}", css=css)
    # A rim in the cell's colour keeps the number clear of the lines below it.
    return f'<rect fill="{colour}" {box}>{title}</rect>', number.replace("<text", f'<text stroke="{colour}"', 1)


def _draw_iso_lines(ps: Sequence[float], ms: Sequence[float], left: float, top: float) -> list[str]:
    if ps[-1] >= 1 or ms[-1] >= 1 or len(ps) < 2 or len(ms) < 2:
        return []
    lines: list[str] = []
    labels: dict[str, tuple[float, float]] = {}
    for effective in ISO_MOMENTA:
        points = [
            (left + (column + 0.5) * CELL_WIDTH, top + (len(ms) - row - 0.5) * CELL_HEIGHT)
            for column, row in iso_line(effective, ps, ms)
        ]
        if len(points) < 2 or math.dist(points[0], points[-1]) < CELL_HEIGHT / 2:
            continue
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        lines.append(f'<path class="iso-back" d="{path}"/><path class="iso" d="{path}"/>')
        labels[f"{effective:g}"] = _label_place(points, top, labels.values())
    return lines + [text(*place, name, css="iso-label") for name, place in labels.items()]


def _label_place(
    points: Sequence[tuple[float, float]], top: float, taken: Iterable[tuple[float, float]]
) -> tuple[float, float]:
    """Where the line crosses a border between two rows (no number stands there) and no other label is near."""
    crossings = []
    for (x1, y1), (x2, y2) in pairwise(points):
        first, last = sorted(((y1 - top) / CELL_HEIGHT, (y2 - top) / CELL_HEIGHT))
        for border in range(math.ceil(first), math.floor(last) + 1):
            y = top + border * CELL_HEIGHT
            crossings.append((x1 + (x2 - x1) * (y - y1) / (y2 - y1) if y2 != y1 else x1, y))
    middle = (points[0][0] + points[-1][0]) / 2
    places = [(x, y + 4) for x, y in crossings or [points[len(points) // 2]]]
    others = list(taken)

    def cost(place: tuple[float, float]) -> tuple[bool, float]:
        crowded = any(abs(place[1] - y) < LABEL_SIZE[1] and abs(place[0] - x) < LABEL_SIZE[0] for x, y in others)
        return crowded, abs(place[0] - middle)

    return min(places, key=cost)
