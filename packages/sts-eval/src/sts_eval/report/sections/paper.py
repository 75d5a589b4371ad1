"""The paper's tables in a report, with our numbers in them and what each of ours departs from."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sts_eval.paper.comparison import Comparison, compare_with_paper, with_conditions
from sts_eval.paper.numbers import TABLES
from sts_eval.report.blocks import DASH, Block, Code, Delta, Notes, Paragraph, Section, Table, TableValue, sentence
from sts_eval.report.runs import Run

MAX_SETTINGS = 3
"""Settings of ours that are set beside one row of the paper; a sweep has many more."""
MAX_NAMES = 2
LEAD = (
    "The paper's rows are the teacher's, and so are ours here; students are under Results. Runs that differ in their "
    "seed only are averaged, with a 95 % interval. The difference is that of the last checkpoint where it was "
    "evaluated. A number may stand beside the paper's only where training and evaluation were the paper's; elsewhere "
    "a note says what differs."
)


@dataclass
class _Line:
    """One setting of ours beside one row of the paper: a comparison by (column, which)."""

    row: str
    runs: tuple[str, ...]
    differences: tuple[str, ...]
    variant: str
    numbers: dict[tuple[str, str], Comparison] = field(default_factory=dict)


def paper_section(runs: Sequence[Run]) -> Section | None:
    """All tables of the paper of which we have a row."""
    known = [
        replace(with_conditions(run.results, run.training, run.metrics), run=run.name)
        for run in runs
        if run.results is not None
    ]
    ours = [comparison for comparison in compare_with_paper(known) if comparison.network == "teacher"]
    foreign = dict.fromkeys(name for comparison in ours if comparison.on_other_data for name in comparison.runs)
    ours = [comparison for comparison in ours if not comparison.on_other_data]
    if not ours and not foreign:
        return None
    blocks: list[Block] = [Paragraph(LEAD)] if ours else []
    notes: dict[str, str] = {}
    for table in dict.fromkeys(comparison.published.table for comparison in ours):
        blocks += _paper_table(table, [comparison for comparison in ours if comparison.published.table == table], notes)
    if notes:
        blocks.append(Notes([(mark, sentence(difference)) for difference, mark in notes.items()]))
    if foreign:
        text = "Other data than the paper's, so that no number of it stands beside them"
        blocks.append(Paragraph(f"{text}: {_listed(list(foreign))}."))
    return Section("paper", "Beside the paper", blocks, "Paper")


def _lines(comparisons: Sequence[Comparison]) -> list[_Line]:
    """One line for each row, runs and differences: of several protocols that share them, the one measured last."""
    lines: dict[tuple[str, tuple[str, ...], tuple[str, ...]], _Line] = {}
    for comparison in comparisons:
        key = (comparison.published.row, comparison.runs, comparison.differences)
        line = lines.setdefault(key, _Line(*key, comparison.variant))
        if line.variant == comparison.variant:
            line.numbers[comparison.published.column, comparison.which] = comparison
    return list(lines.values())


def _chosen(lines: Sequence[_Line]) -> tuple[list[_Line], int]:
    """For each row of the paper the settings nearest to it, the best of equals, and how many were left out."""
    kept: list[_Line] = []
    for row in dict.fromkeys(line.row for line in lines):
        of_row = [line for line in lines if line.row == row]
        of_row.sort(key=lambda line: (len(line.differences), -max(c.ours.mean for c in line.numbers.values())))
        kept += of_row[:MAX_SETTINGS]
    return kept, len(lines) - len(kept)


def _paper_table(name: str, comparisons: Sequence[Comparison], notes: dict[str, str]) -> list[Block]:
    """One table of the paper; `notes` maps differences to their marks, over all tables."""
    lines, left_out = _chosen(_lines(comparisons))
    columns = list(dict.fromkeys(c.published.column for c in comparisons))
    ways = {
        column: list(dict.fromkeys(w for line in lines for c, w in line.numbers if c == column)) for column in columns
    }
    rows: list[list[TableValue]] = []
    for line in lines:
        marks = [notes.setdefault(difference, str(len(notes) + 1)) for difference in line.differences]
        values = [value for column in columns for value in _values(line, column, ways[column])]
        rows.append([line.row, f"no: {_ranges(marks)}" if marks else "yes", Code(_listed(line.runs)), *values])
    header = ["row", "may stand", "our runs", *(h for c in columns for h in ("paper", *ways[c], "difference"))]
    groups = [("", 3), *((column, len(ways[column]) + 2) for column in columns)]
    title = TABLES[name].title if name in TABLES else "Numbers in the text"
    note = f"{left_out} more settings of these rows are left out; they are under Results." if left_out else ""
    return [Table(header, rows, title, note, frozenset(range(3, len(header))), groups)]


def _ranges(marks: Sequence[str]) -> str:
    """`1-3, 7`: the numbers of notes, consecutive ones joined."""
    parts: list[list[int]] = []
    for mark in sorted(map(int, marks)):
        if parts and mark == parts[-1][-1] + 1:
            parts[-1].append(mark)
        else:
            parts.append([mark])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}{DASH}{part[-1]}" for part in parts)


def _listed(runs: Sequence[str]) -> str:
    more = f" and {len(runs) - MAX_NAMES} more" if len(runs) > MAX_NAMES else ""
    return ", ".join(runs[:MAX_NAMES]) + more


def _values(line: _Line, column: str, ways: Sequence[str]) -> list[TableValue]:
    """The paper's number, ours in each way it is reported, and the difference of the first of them."""
    found = [line.numbers.get((column, way)) for way in ways]
    present = [comparison for comparison in found if comparison is not None]
    if not present:
        return [None] * (len(ways) + 2)
    difference = present[0].minus_paper
    ours: list[TableValue] = [None if c is None else _number(c) for c in found]
    if difference is None:
        return [present[0].published.printed, *ours, None]
    low, high = present[0].ours.low, present[0].ours.high
    if low is None or high is None:
        return [present[0].published.printed, *ours, Delta(difference, remark="one seed")]
    shift = difference - present[0].ours.mean
    return [present[0].published.printed, *ours, Delta(difference, 2, low + shift, high + shift)]


def _number(comparison: Comparison) -> str:
    ours = comparison.ours
    interval = "" if ours.high is None else f" ± {ours.high - ours.mean:.2f}"
    return f"{ours.mean:.2f}{interval}"
