"""The report as Markdown: every table, and every figure as the table of its data."""

from sts_eval.report.blocks import DASH, Code, Figure, Notes, Paragraph, Report, Section, Table, TableValue


def escape_markdown(text: str) -> str:
    """Text that Markdown leaves alone, also inside a table."""
    for mark in "\\`*_{}[]<>|#":
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())


def _cell(value: TableValue) -> str:
    if value is None:
        return DASH
    if isinstance(value, Code):
        # Inside a code span nothing can be escaped: what would end it or the table's column is replaced.
        return f"`{' '.join(value.text.split()).replace('`', chr(0x2019)).replace('|', chr(0xA6))}`"
    return escape_markdown(str(value))


def _table(table: Table) -> list[str]:
    rule = ["---:" if column in table.numeric else "---" for column in range(len(table.header))]
    prefixes = [name for name, span in table.groups for _ in range(span)] or [""] * len(table.header)
    head = [escape_markdown(f"{prefix} {name}".strip()) for prefix, name in zip(prefixes, table.header, strict=True)]
    rows = [head, rule, *([_cell(value) for value in row] for row in table.rows)]
    lines = [f"**{escape_markdown(table.caption)}**", ""] if table.caption else []
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return [*lines, "", escape_markdown(table.note), ""] if table.note else [*lines, ""]


def _figure(figure: Figure) -> list[str]:
    lines = [f"**{escape_markdown(figure.caption)}** (drawn in report.html)", ""]
    if figure.table is not None:
        lines += _table(figure.table)
    return [*lines, escape_markdown(figure.note), ""] if figure.note else lines


def _section(section: Section) -> list[str]:
    lines = [f"## {escape_markdown(section.title)}", ""]
    for block in section.blocks:
        if isinstance(block, Paragraph):
            lines += [escape_markdown(block.text), ""]
        elif isinstance(block, Notes):
            lines += [f"{mark}. {escape_markdown(text)}" for mark, text in block.items] + [""]
        else:
            lines += _table(block) if isinstance(block, Table) else _figure(block)
    return lines


def to_markdown(report: Report) -> str:
    """The whole report."""
    lines = [f"# {escape_markdown(report.title)}", ""]
    for fact in report.facts:
        detail = f" ({escape_markdown(fact.detail)})" if fact.detail else ""
        lines.append(f"- {escape_markdown(fact.label)}: **{escape_markdown(fact.value)}**{detail}")
    lines.append("")
    for section in report.sections:
        lines += _section(section)
    return "\n".join(lines).rstrip() + "\n"
