"""What a report is made of, before it is Markdown or HTML."""

from collections.abc import Sequence
from dataclasses import dataclass, field

MINUS, TIMES, DASH = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}", "\N{EN DASH}"
EFFECTIVE_MOMENTUM = f"m_eff = 1 {MINUS} (1 {MINUS} p)(1 {MINUS} m)"


@dataclass(frozen=True)
class Delta:
    """A difference, printed with its sign, and coloured by it where its interval excludes zero."""

    value: float
    decimals: int = 2
    low: float | None = None
    high: float | None = None
    remark: str = ""
    """What is said in place of an interval."""

    def __str__(self) -> str:
        number = f"{self.value:+.{self.decimals}f}".replace("-", MINUS)
        if self.low is None or self.high is None:
            return f"{number} ({self.remark})" if self.remark else number
        interval = f"[{self.low:+.{self.decimals}f}, {self.high:+.{self.decimals}f}]".replace("-", MINUS)
        return f"{number} {interval}"

    @property
    def direction(self) -> str:
        """gain or loss, or even where zero is inside the interval or there is none."""
        if self.low is None or self.high is None or self.low <= 0 <= self.high:
            return "even"
        return "gain" if self.value > 0 else "loss"


@dataclass(frozen=True)
class Code:
    """A name or a setting, printed in a fixed-width font."""

    text: str

    def __str__(self) -> str:
        return self.text


TableValue = str | Delta | Code | None
"""None is a missing value, printed as a dash."""


@dataclass(frozen=True)
class Table:
    """Rows under a header; the first column names the row, columns in `numeric` are set flush right."""

    header: Sequence[str]
    rows: Sequence[Sequence[TableValue]]
    caption: str = ""
    note: str = ""
    numeric: frozenset[int] = frozenset()
    groups: Sequence[tuple[str, int]] = ()
    """A second header above the first: names and how many columns each spans."""

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.header) for row in self.rows), "a row has as many values as the header"
        assert not self.groups or sum(span for _, span in self.groups) == len(self.header), "groups cover all columns"


def numeric_table(
    header: Sequence[str], rows: Sequence[Sequence[TableValue]], caption: str = "", note: str = ""
) -> Table:
    """A table whose columns behind the first hold numbers."""
    return Table(header, rows, caption, note, frozenset(range(1, len(header))))


@dataclass(frozen=True)
class LegendEntry:
    """A line's name and colour."""

    name: str
    colour: int


@dataclass(frozen=True)
class Figure:
    """Drawings side by side under one caption and one legend, and the same data as a table."""

    caption: str
    drawings: Sequence[tuple[str, str]]
    """(heading, svg)."""
    legend: Sequence[LegendEntry] = ()
    table: Table | None = None
    note: str = ""


@dataclass(frozen=True)
class Paragraph:
    """Plain text."""

    text: str


@dataclass(frozen=True)
class Notes:
    """Numbered remarks on a table, (mark, text)."""

    items: Sequence[tuple[str, str]]


Block = Table | Figure | Paragraph | Notes


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it."""

    anchor: str
    title: str
    blocks: Sequence[Block]
    short: str = ""
    """Its name in the navigation, if the title is too long for it."""


@dataclass(frozen=True)
class Fact:
    """A number of the summary at the top."""

    label: str
    value: str
    detail: str = ""


@dataclass(frozen=True)
class Report:
    """The whole report."""

    title: str
    facts: Sequence[Fact]
    sections: Sequence[Section] = field(default_factory=tuple)


def sentence(text: str) -> str:
    """The text with a capital first letter; the others stay as they are."""
    return text[:1].upper() + text[1:]


def percent(value: float | None) -> str | None:
    """A percentage with two decimals."""
    return None if value is None else f"{value:.2f}"
