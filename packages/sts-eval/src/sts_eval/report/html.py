"""The report as one HTML page: no script, no network, nothing but itself; all text is escaped here."""

from html import escape

from sts_eval.report.blocks import (
    DASH,
    Block,
    Code,
    Delta,
    Figure,
    Notes,
    Paragraph,
    Report,
    Section,
    Table,
    TableValue,
)
from sts_eval.report.style import STYLE

LONG = 40
"""Characters from which on text in a table may wrap."""
MANY_ROWS = 16
"""A table with more rows is folded, to be opened by the reader."""


def _content(value: TableValue) -> str:
    if value is None:
        return f'<span class="none">{DASH}</span>'
    if isinstance(value, Code):
        return f"<code>{escape(value.text)}</code>"
    if isinstance(value, Delta):
        return f'<span class="{value.direction}">{escape(str(value))}</span>'
    return escape(value)


def _cell(value: TableValue, column: int, table: Table) -> str:
    if column == 0:
        return f'<th scope="row">{_content(value)}</th>'
    css = "number" if column in table.numeric else "text"
    if css == "text":
        css += " long" if value is not None and len(str(value)) > LONG else " short"
    return f'<td class="{css}">{_content(value)}</td>'


def _table(table: Table, *, folded: bool = False) -> str:
    """A table that scrolls sideways where it must; a long one is folded unless it is inside a fold."""
    head = "".join(
        f'<th scope="col"{" class=number" if column in table.numeric else ""}>{escape(name)}</th>'
        for column, name in enumerate(table.header)
    )
    groups = "".join(f'<th scope="colgroup" colspan="{span}">{escape(name)}</th>' for name, span in table.groups)
    rows = "".join(
        f"<tr>{''.join(_cell(value, column, table) for column, value in enumerate(row))}</tr>" for row in table.rows
    )
    caption = f'<p class="caption">{escape(table.caption)}</p>' if table.caption else ""
    # A region that scrolls must be reachable by keyboard and have a name.
    name = escape(table.caption or table.header[0] or "table")
    head = f"{f'<tr>{groups}</tr>' if groups else ''}<tr>{head}</tr>"
    body = f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>"
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    region = f'<div class="scroll" role="region" aria-label="{name}" tabindex="0">{body}</div>{note}'
    if len(table.rows) <= MANY_ROWS or folded:
        return f"<div>{caption}{region}</div>"
    title = f"{table.caption}: {len(table.rows)} rows" if table.caption else f"All {len(table.rows)} rows"
    return f"<details><summary>{escape(title)}</summary>{region}</details>"


def _figure(figure: Figure) -> str:
    keys = "".join(f'<li><span class="key s{entry.colour}"></span>{escape(entry.name)}</li>' for entry in figure.legend)
    panels = "".join(
        f"<div>{f'<h3>{escape(heading)}</h3>' if heading else ''}{svg}</div>" for heading, svg in figure.drawings
    )
    single = " single" if len(figure.drawings) == 1 else ""
    parts = [f"<figcaption>{escape(figure.caption)}</figcaption>"]
    parts += [f'<ul class="legend">{keys}</ul>'] if keys else []
    parts.append(f'<div class="panels{single}">{panels}</div>')
    parts += [f'<p class="note">{escape(figure.note)}</p>'] if figure.note else []
    if figure.table is not None:
        parts.append(f"<details><summary>Data as a table</summary>{_table(figure.table, folded=True)}</details>")
    return f"<figure>{''.join(parts)}</figure>"


def _block(block: Block) -> str:
    if isinstance(block, Paragraph):
        return f"<p>{escape(block.text)}</p>"
    if isinstance(block, Notes):
        items = "".join(f"<li><b>{escape(mark)}</b> {escape(text)}</li>" for mark, text in block.items)
        return f'<ul class="remarks">{items}</ul>'
    return _table(block) if isinstance(block, Table) else _figure(block)


def _section(section: Section) -> str:
    body = "".join(_block(block) for block in section.blocks)
    return f'<section id="{escape(section.anchor)}"><h2>{escape(section.title)}</h2>{body}</section>'


def to_html(report: Report) -> str:
    """The whole page."""
    facts = "".join(
        f'<div><dt>{escape(fact.label)}</dt><dd class="figure">{escape(fact.value)}</dd>'
        f"{f'<dd class=detail>{escape(fact.detail)}</dd>' if fact.detail else ''}</div>"
        for fact in report.facts
    )
    links = "".join(f'<li><a href="#{escape(s.anchor)}">{escape(s.short or s.title)}</a></li>' for s in report.sections)
    sections = "".join(_section(section) for section in report.sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(report.title)} · STS report</title><style>{STYLE}</style></head><body>"
        f'<header><p class="eyebrow">Student-teacher smoothing · report</p><h1>{escape(report.title)}</h1>'
        f'<dl class="facts">{facts}</dl></header><nav aria-label="Sections"><ul>{links}</ul></nav>'
        f"<main>{sections}</main><footer>Written by sts-eval. Hover a point, a bar or a cell for its value.</footer>"
        "</body></html>\n"
    )
