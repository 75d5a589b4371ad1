"""Rows of text in columns, for the terminal."""

from collections.abc import Mapping, Sequence


def text_table(rows: Sequence[Mapping[str, str]], headings: Mapping[str, str]) -> str:
    """A line of headings and a line per row, with as many columns as there are headings."""
    lines = [headings, *rows]
    widths = {column: max(len(line[column]) for line in lines) for column in headings}
    return "\n".join("  ".join(line[column].ljust(widths[column]) for column in headings).rstrip() for line in lines)
