"""The report of one or several runs."""

from collections.abc import Sequence


def write(folders: Sequence[str], *, against_paper: bool = False, output: str | None = None) -> str:
    """Write a report of `folders`; returns what to tell the user."""
    return "report: not yet"
