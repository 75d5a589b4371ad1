"""Plots as SVG text."""

from sts_eval.report.charts.heat_map import Cell, heat_map
from sts_eval.report.charts.svg import Bar, Series, bar_chart, line_chart, text
from sts_eval.report.style import standalone

__all__ = ["Bar", "Cell", "Series", "bar_chart", "heat_map", "line_chart", "standalone", "text"]
