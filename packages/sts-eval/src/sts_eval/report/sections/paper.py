"""The paper's tables in a report, with our numbers in them and what each of ours departs from."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sts_eval.paper.comparison import Comparison, compare_with_paper, with_conditions
from sts_eval.paper.numbers import TABLES
from sts_eval.report.blocks import Block, CellValue, Code, Delta, Notes, Paragraph, Section, Table, sentence
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
    obstacles: tuple[str, ...]
    variant: str
    cells: dict[tuple[str, str], Comparison] = field(default_factory=dict)


def paper_section(runs: Sequence[Run]) -> Section | None:
    """All tables of the paper of which we have a row."""
    known = [
        replace(with_conditions(run.results, run.config, run.metrics), run=run.name)
        for run in runs
        if run.results is not None
    ]
    ours = [comparison for comparison in compare_with_paper(known) if comparison.network == "teacher"]
    if not ours:
        return None
    blocks: list[Block] = [Paragraph(LEAD)]
    for table in dict.fromkeys(comparison.published.table for comparison in ours):
        blocks += _paper_table(table, [comparison for comparison in ours if comparison.published.table == table])
    return Section("paper", "Beside the paper", blocks, "Paper")


def _lines(comparisons: Sequence[Comparison]) -> list[_Line]:
    """One line for each row, runs and obstacles: of several protocols that share them, the one measured last."""
    lines: dict[tuple[str, tuple[str, ...], tuple[str, ...]], _Line] = {}
    for comparison in comparisons:
        key = (comparison.published.row, comparison.runs, comparison.obstacles)
        line = lines.setdefault(key, _Line(*key, comparison.variant))
        if line.variant == comparison.variant:
            line.cells[comparison.published.column, comparison.which] = comparison
    return list(lines.values())


def _chosen(lines: Sequence[_Line]) -> tuple[list[_Line], int]:
    """For each row of the paper the settings nearest to it, the best of equals, and how many were left out."""
    kept: list[_Line] = []
    for row in dict.fromkeys(line.row for line in lines):
        of_row = [line for line in lines if line.row == row]
        of_row.sort(key=lambda line: (len(line.obstacles), -max(c.ours.mean for c in line.cells.values())))
        kept += of_row[:MAX_SETTINGS]
    return kept, len(lines) - len(kept)


def _paper_table(name: str, comparisons: Sequence[Comparison]) -> list[Block]:
    lines, left_out = _chosen(_lines(comparisons))
    columns = list(dict.fromkeys(c.published.column for c in comparisons))
    ways = {
        column: list(dict.fromkeys(w for line in lines for c, w in line.cells if c == column)) for column in columns
    }
    notes: dict[tuple[str, ...], str] = {}
    rows: list[list[CellValue]] = []
    for line in lines:
        mark = notes.setdefault(line.obstacles, str(len(notes) + 1)) if line.obstacles else ""
        cells = [cell for column in columns for cell in _cells(line, column, ways[column])]
        rows.append([line.row, _names(line.runs), *cells, f"no: {mark}" if mark else "yes"])
    header = [
        "row",
        "our runs",
        *(h for c in columns for h in ("paper", *ways[c], "difference")),
        "may stand beside it",
    ]
    groups = [("", 2), *((column, len(ways[column]) + 2) for column in columns), ("", 1)]
    title = TABLES[name].title if name in TABLES else "Numbers in the text"
    note = f"{left_out} more settings of these rows are left out; they are under Results." if left_out else ""
    table = Table(header, rows, title, note, frozenset(range(2, len(header) - 1)), groups)
    remarks = [(mark, sentence("; ".join(obstacles))) for obstacles, mark in notes.items()]
    return [table, Notes(remarks)] if remarks else [table]


def _names(runs: Sequence[str]) -> CellValue:
    more = f" and {len(runs) - MAX_NAMES} more" if len(runs) > MAX_NAMES else ""
    return Code(", ".join(runs[:MAX_NAMES]) + more)


def _cells(line: _Line, column: str, ways: Sequence[str]) -> list[CellValue]:
    """The paper's number, ours in each way it is reported, and the difference of the first of them."""
    found = [line.cells.get((column, way)) for way in ways]
    present = [comparison for comparison in found if comparison is not None]
    if not present:
        return [None] * (len(ways) + 2)
    difference = present[0].difference
    ours: list[CellValue] = [None if c is None else _number(c) for c in found]
    return [present[0].published.printed, *ours, None if difference is None else Delta(difference)]


def _number(comparison: Comparison) -> str:
    ours = comparison.ours
    interval = "" if ours.high is None else f" ± {ours.high - ours.mean:.2f}"
    return f"{ours.mean:.2f}{interval}"
