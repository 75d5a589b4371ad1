"""Names of pipelines. Nothing here, and nothing at the top of a catalog file, imports torch: `sts list` is instant."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from sts_pipelines.catalog.hours import estimates

if TYPE_CHECKING:
    from sts_pipelines.config.kinds import AnyPipeline

R = TypeVar("R", bound="AnyPipeline")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A named pipeline with what a user wants to know before running it."""

    name: str
    """What the user types."""
    paper: str
    """The table or figure of the paper that it belongs to; a dash for none."""
    hardware: str
    """What it was written for."""
    hours: str
    """Hours on that hardware, or an estimate marked as such (hours.py); a question mark where there is neither."""
    bfloat16: str
    """The estimate for --precision bfloat16; a dash on CPUs."""
    verb: Literal["run", "sweep"]
    """The verb that runs it."""
    build: "Callable[[], AnyPipeline]"
    """Returns the complete typed config."""
    published: tuple[str, str, str] | None = None
    """Table, row and column of the number to expect, which stands in the docstring as {expected} or {published}."""

    @property
    def is_estimated(self) -> bool:
        """Whether nobody has measured the hours."""
        return " est." in self.hours

    @property
    def description(self) -> str:
        """The docstring: command, hardware, hours, expected result."""
        text = inspect.cleandoc(self.build.__doc__ or "").replace("{time}", _time(self.name))
        return text if self.published is None else _with_number(text, self.published)


def _with_number(text: str, key: tuple[str, str, str]) -> str:
    from sts_eval import published  # here, because it imports torch

    number = published(*key)
    kind = "top-1" if number.table == "few-labels" else "linear top-1"
    found = f"{number.printed} % {kind} of the teacher (paper)"
    failed = "it to fail, as it did in the paper"
    expected = failed if number.value is None else found
    return text.replace("{published}", number.printed).replace("{expected}", expected)


def _time(name: str) -> str:
    """What a docstring says of hours that nobody has measured; `{time}` there."""
    if name not in ESTIMATES:
        return "not measured"
    own, half = (str(ESTIMATES[name][precision]) for precision in ("own", "bfloat16"))
    shorter = "" if own == half else f", {half} with --precision bfloat16"
    return f"{own} on A100 / RTX 2080 Ti{shorter}"


def note_on_se(smoothing: str) -> str:
    """What a docstring adds on ImageNet's SE rows; nothing for the others."""
    note = """
    SE here has p = .999 and a constant m = 0, which is our choice: neither the paper nor its code says with what p and
    m these rows were trained. The paper names p = .999 for its smoothing figure alone; its BYOL code raises m to 1."""
    return note if smoothing == "se" else ""


CATALOG: dict[str, Entry] = {}
ESTIMATES = estimates()


def named(
    name: str,
    *,
    paper: str,
    hardware: str,
    hours: str | None = None,
    verb: Literal["run", "sweep"] = "run",
    published: tuple[str, str, str] | None = None,
) -> "Callable[[Callable[[], R]], Callable[[], R]]":
    """Enter a function that returns a complete config into the catalog; without `hours`, those of hours.json."""

    def enter(build: "Callable[[], R]") -> "Callable[[], R]":
        if name in CATALOG:
            raise ValueError(f"catalog names are unique, got {name!r} twice: rename one")
        found = ESTIMATES.get(name) if hours is None else None
        CATALOG[name] = Entry(
            name=name,
            paper=paper,
            hardware=hardware,
            hours=hours or (str(found["own"]) if found else "?"),
            bfloat16=str(found["bfloat16"]) if found else "-",
            verb=verb,
            build=build,
            published=published,
        )
        return build

    return enter
