"""The report of one or several runs."""

from collections.abc import Sequence
from pathlib import Path

from sts_eval.report import write_report


def write(folders: Sequence[str | Path], *, against_paper: bool = False, output: str | Path) -> str:
    """Write report.md and report.html about `folders`; returns what to tell the user."""
    _, page = write_report([Path(folder) for folder in folders], Path(output), against_paper=against_paper)
    return f"report: {page}"
