"""Scales, charts and the p x m plane."""

import math
import xml.etree.ElementTree as ElementTree

import pytest

from sts_eval.report.charts.heat_map import Cell, colour_of, colour_range, heat_map, iso_line, pull_decades
from sts_eval.report.charts.scales import linear_scale, log_scale, round_step, tick_text
from sts_eval.report.charts.svg import Bar, Series, bar_chart, dot_plot, line_chart
from sts_eval.report.style import standalone

SVG = "{http://www.w3.org/2000/svg}"


def parts(svg: str, tag: str, css: str) -> list[ElementTree.Element]:
    return [node for node in ElementTree.fromstring(svg).iter(f"{SVG}{tag}") if css in node.get("class", "").split()]


def words(svg: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(svg).iter(f"{SVG}text")]


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3.2, 17.0), (71.83, 72.91), (1e-7, 3e-6), (0, 812_344)])
def test_a_linear_scale_holds_the_data_and_has_four_to_twelve_round_ticks(low: float, high: float) -> None:
    scale = linear_scale(low, high)
    assert scale.low <= low
    assert high <= scale.high
    assert 4 <= len(scale.ticks) <= 12
    assert scale.position(scale.low) == 0
    assert scale.position(scale.high) == 1
    step = scale.ticks[1] - scale.ticks[0]
    assert round(step / 10 ** math.floor(math.log10(step) + 1e-9), 6) in (1, 2, 5)


def test_a_scale_of_one_value_still_has_a_width() -> None:
    for value in (0.0, 5.0, -2.0):
        scale = linear_scale(value, value)
        assert scale.low < value < scale.high


def test_a_log_scale_has_decades_or_finer_steps_where_the_data_is_narrow() -> None:
    wide = log_scale(3e-7, 2e-2)
    assert wide.ticks[0] == pytest.approx(1e-7)
    assert wide.ticks[-1] == pytest.approx(1e-1)
    assert wide.position(1e-4) == pytest.approx(0.5)
    assert log_scale(0.011, 0.04).ticks == pytest.approx((0.01, 0.02, 0.05))
    flat = log_scale(1.0, 1.0)
    assert flat.low < flat.high


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.0, "0"), (0.25, "0.25"), (40.0, "40.00"), (12_000.0, "12k"), (3e6, "3M"), (2e-5, "2·10⁻⁵")],
)
def test_ticks_are_short(value: float, expected: str) -> None:
    assert tick_text(value, linear_scale(0, 0.2)) == expected


def test_round_steps_are_1_2_or_5_times_a_power_of_ten() -> None:
    assert [round_step(span) for span in (1.0, 5.0, 11.0, 0.3)] == pytest.approx([0.2, 1.0, 2.0, 0.05])


def test_a_line_chart_draws_points_where_they_belong() -> None:
    svg = line_chart([Series("a", ((0.0, 0.0), (10.0, 5.0)))], label="t", x_label="x", y_label="y", markers=True)
    first, second = parts(svg, "circle", "dot")
    assert float(first.get("cx", "")) < float(second.get("cx", ""))
    assert float(first.get("cy", "")) > float(second.get("cy", ""))  # upwards is a smaller y
    assert {"x", "y"} <= set(words(svg))


def test_values_that_cannot_be_drawn_leave_a_gap() -> None:
    points = ((0.0, 1.0), (1.0, math.nan), (2.0, 2.0), (3.0, 0.0), (4.0, 3.0))
    linear = parts(line_chart([Series("a", points)], label="t", x_label="x"), "path", "line")[0].get("d", "")
    assert (linear.count("M"), linear.count("L")) == (2, 2)
    log = parts(line_chart([Series("a", points)], label="t", x_label="x", log_y=True), "path", "line")[0].get("d", "")
    assert (log.count("M"), log.count("L")) == (3, 0)
    with pytest.raises(ValueError, match="no point to draw"):
        line_chart([Series("a", ((0.0, math.nan),))], label="t", x_label="x")


def test_names_are_escaped() -> None:
    name = '<script>alert("1")</script>'
    drawings = [
        line_chart([Series(name, ((0.0, 1.0), (1.0, 2.0)))], label=name, x_label=name, y_label=name, markers=True),
        bar_chart([Bar(name, 1.0, 0.5, 1.5)], label=name, x_label=name),
        dot_plot([(name, "")], [Series(name, ((0.0, 1.0),))], label=name, x_label=name),
        heat_map({(0.0, 0.9): Cell(1.0), (0.5, 0.9): Cell(2.0)}, label=name),
    ]
    for svg in drawings:
        ElementTree.fromstring(svg)
        assert "<script" not in svg


def test_bars_go_to_the_side_of_their_sign_and_whiskers_span_the_interval() -> None:
    svg = bar_chart([Bar("up", 2.0, 1.0, 3.0), Bar("down", -1.0, -2.0, -0.5)], label="t", x_label="points")
    (up,), (down,) = parts(svg, "rect", "gain"), parts(svg, "rect", "loss")
    zero = float(up.get("x", ""))
    assert float(down.get("x", "")) + float(down.get("width", "")) == pytest.approx(zero, abs=0.02)
    whisker = parts(svg, "line", "whisker")[0]
    middle = zero + float(up.get("width", ""))
    assert (float(whisker.get("x1", "")) + float(whisker.get("x2", ""))) / 2 == pytest.approx(middle, abs=0.02)
    assert {"+2.00", "-1.00"} <= set(words(svg))


def test_points_on_an_iso_line_have_its_effective_momentum() -> None:
    ps, ms = [0.0, 0.5, 0.9, 0.99], [0.0, 0.9, 0.99]
    for effective in (0.9, 0.97, 0.99, 0.999):
        line = iso_line(effective, ps, ms)
        assert len(line) >= 2
        for column, row in line:
            u = interpolated(column, ps) + interpolated(row, ms)
            assert u == pytest.approx(pull_decades(effective))
    assert (0.0, 1.0) in [pytest.approx(point) for point in iso_line(0.9, ps, ms)]  # p = 0, m = 0.9
    assert iso_line(0.99999, ps, ms) == []


def interpolated(place: float, values: list[float]) -> float:
    index = min(int(place), len(values) - 2)
    low, high = pull_decades(values[index]), pull_decades(values[index + 1])
    return low + (place - index) * (high - low)


def test_the_plane_shows_every_cell_with_its_number_and_leaves_missing_ones_open() -> None:
    cells = {(p, m): Cell(100 * p + m) for p in (0.0, 0.5) for m in (0.0, 0.9, 0.99)}
    del cells[0.5, 0.99]
    svg = heat_map(cells, label="plane")
    assert {"0.0", "0.9", "1.0", "50.0", "50.9"} <= set(words(svg))
    assert len(parts(svg, "rect", "open")) == 1
    assert parts(svg, "path", "iso")
    titles = [node.text or "" for node in ElementTree.fromstring(svg).iter(f"{SVG}title")]
    assert any("p = 0.5, m = 0.9, m_eff = 0.95: 50.90" in title for title in titles)


def test_a_plane_with_a_frozen_teacher_or_one_row_is_drawn_without_lines() -> None:
    assert not parts(heat_map({(1.0, 0.9): Cell(1.0), (0.0, 0.9): Cell(2.0)}, label="t"), "path", "iso")


def test_failed_runs_do_not_use_up_the_colours() -> None:
    low, high = colour_range([10.0, 10.0, 70.0, 71.0, 72.0, 72.5, 73.0])
    assert high == 73.0
    assert 60 < low < 70
    assert colour_of(0.0) != colour_of(1.0)
    assert colour_of(-1.0) == colour_of(0.0)


def test_a_drawing_on_its_own_brings_its_colours() -> None:
    svg = standalone(heat_map({(0.0, 0.9): Cell(1.0), (0.5, 0.9): Cell(2.0)}, label="t"))
    ElementTree.fromstring(svg)
    assert "prefers-color-scheme: dark" in svg
    assert "--quiet:" in svg
