"""Tables for the terminal."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

NETWORKS = ("teacher", "student", "untrained")


def print_table(runs: Mapping[str, Path]) -> None:
    """Print the last results of each run: the first metric of each evaluation."""
    from sts_eval import read_results  # with torch, which not every table needs
    from sts_methods import columns_of, painted

    entries = {
        label: read_results(folder).entries for label, folder in runs.items() if (folder / "results.json").is_file()
    }
    if entries:
        width = columns_of(sys.stdout)
        lines = format_table(entries, width=width).splitlines()
        for line in lines[: -len(entries)]:
            print(painted(line, "bold", sys.stdout))
        print("\n".join(lines[-len(entries) :]))
        print("\n".join(line if width is None else fill(line, width) for line in caveats(entries)))


def caveats(entries: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """What a table of single trainings does not say: that each is one seed, and which labels chose a penalty."""
    lines = ["one seed each: a difference needs several to mean something"]
    if any(row["network"] == "untrained" for rows in entries.values() for row in rows):
        lines.append("untrained: the network that a run starts from; a row shows whether training adds to it, no more")
    shown = {row["selected_on"]: row for rows in entries.values() for row in rows if row.get("selected_on")}
    if "held-out" in shown:
        share = shown["held-out"].get("protocol", {}).get("held_out_fraction", 0.0)
        lines.append(f"linear: one of several classifiers, chosen on {share:.0%} of the training images")
    if "test" in shown:
        lines.append("linear: one of several classifiers, chosen on the test labels (optimistic)")
    return lines


def format_table(entries: Mapping[str, Sequence[Mapping[str, Any]]], *, width: int | None = None) -> str:
    """Rows of `entries` by label; the first entry of a kind counts (the first k of k-NN, the last epoch).

    What no run was asked to measure gets no column. The headings take two lines where one is longer than `width`.
    """
    from sts_eval import registered_evaluations

    columns = [
        (one.column, network, (one.name, one.metrics[0].name, network))
        for one in registered_evaluations()
        for network in NETWORKS
        if not one.logged
        and any(_value(rows, one.name, one.metrics[0].name, network) is not None for rows in entries.values())
    ]

    def lines(*, split: bool) -> list[str]:
        cells = [[*[""] * split, "run", *entries]]
        for column, network, key in columns:
            heading = [column, network] if split else [f"{column} {network}"]
            cells.append([*heading, *(_shown(_value(rows, *key)) for rows in entries.values())])
        widths = [max(map(len, column)) for column in cells]
        rows = [[text.rjust(size) for text, size in zip(row, widths, strict=True)] for row in zip(*cells, strict=True)]
        return ["  ".join([label.strip().ljust(widths[0]), *values]) for label, *values in rows]

    whole = lines(split=False)
    return "\n".join(whole if width is None or len(whole[0]) <= width else lines(split=True))


def value_of(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """The number called `evaluation/network/metric`, such as knn/teacher/top1."""
    evaluation, network, metric = name.split("/", 2)
    return _value(rows, evaluation, metric, network)


def _value(rows: Sequence[Mapping[str, Any]], evaluation: str, metric: str, network: str) -> float | None:
    wanted = (evaluation, metric, network, "last")
    keys = ("evaluation", "metric", "network", "which")
    return next((float(row["value"]) for row in rows if tuple(row[key] for key in keys) == wanted), None)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def roughly(seconds: float) -> str:
    """Two digits of it: `40 seconds`, `2.5 minutes`, `31 hours`, `37 days`."""
    sizes = (("days", 86_400.0, 100 * 3600.0), ("hours", 3600.0, 7200.0), ("minutes", 60.0, 120.0))
    unit, size = next(((name, size) for name, size, least in sizes if seconds >= least), ("seconds", 1.0))
    return f"{float(f'{seconds / size:.2g}'):,g} {unit}"


def text_table(rows: Sequence[Mapping[str, str]], headings: Mapping[str, str], *, width: int | None = None) -> str:
    """A line of headings and a line per row, with as many columns as there are headings.

    Where the lines would be longer than `width`, columns without any value are left out and the widest ones are cut
    short; the first, whose ends tell rows apart, at its front and only if it is the widest.
    """
    lines = [headings, *rows]
    widths = {column: max(len(line[column]) for line in lines) for column in headings}
    if width is not None and _excess(widths, width) > 0:
        widths = {column: widths[column] for column in headings if any(row[column] != "-" for row in rows)}
        first, *others = widths
        if widths[first] == max(widths.values()):
            widths[first] = max(widths[first] - max(_excess(widths, width), 0), 18)
        for column in sorted(others, key=lambda column: widths[column], reverse=True):
            left = widths[column] - max(_excess(widths, width), 0)
            widths[column] = min(widths[column], max(left, 8))
    cut = [
        [_cut(line[column], size, k == 0).ljust(size) for k, (column, size) in enumerate(widths.items())]
        for line in lines
    ]
    return "\n".join("  ".join(row).rstrip() for row in cut)


def _excess(widths: Mapping[str, int], width: int) -> int:
    return sum(widths.values()) + 2 * (len(widths) - 1) - width


def _cut(text: str, width: int, at_front: bool) -> str:
    if len(text) <= width:
        return text
    return f"..{text[2 - width :]}" if at_front else f"{text[: width - 2]}.."
