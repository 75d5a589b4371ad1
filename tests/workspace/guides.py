"""The pages that people read, and the code in them. CONTRIBUTING says what a page may ask of its test."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("packages/sts-core", "packages/sts-methods", "packages/sts-eval", "pipelines")
PAGES = sorted(
    page.relative_to(ROOT).as_posix()
    for page in (
        *(ROOT / "README.md", ROOT / ".github/CONTRIBUTING.md"),
        *(page for folder in FOLDERS for pages in ("README.md", "docs/*.md") for page in (ROOT / folder).glob(pages)),
    )
)
LANGUAGES = ("python", "bash", "yaml", "toml", "json", "text", "bibtex")
_BLOCK = re.compile(
    r"(?P<notes>(?:^<!-- .*? -->\n)*)^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
_NOTE = re.compile(r"<!-- (given|tested with|not run): (.*?) -->", re.DOTALL)
_CHANGE = re.compile(r"`([^`]+)` for `([^`]+)`")


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block of a page, and what the comments right above it ask for."""

    page: str
    line: int
    language: str
    written: str
    notes: dict[str, str]

    @property
    def given(self) -> list[str]:
        """Names that the page takes for granted: fixtures of the test."""
        return [name.strip() for name in self.notes.get("given", "").split(",") if name.strip()]

    @property
    def runs(self) -> bool:
        return "not run" not in self.notes

    @property
    def code(self) -> str:
        """What runs: the block, with the changes that its comment states, at its line of the page."""
        code = self.written
        for new, old in _CHANGE.findall(self.notes.get("tested with", "")):
            assert code.count(old) == 1, f"{self.page}:{self.line}: {old!r} must stand once in the block"
            code = code.replace(old, new)
        return code


def blocks(page: str, *languages: str) -> Iterator[Block]:
    """The blocks of a page, in order; those in `languages` only, if any are given."""
    text = (ROOT / page).read_text()
    for found in _BLOCK.finditer(text):
        line = text.count("\n", 0, found.start("code"))
        notes = {kind: " ".join(value.split()) for kind, value in _NOTE.findall(found["notes"])}
        if not languages or found["language"] in languages:
            yield Block(page=page, line=line, language=found["language"], written=found["code"], notes=notes)


def commands(block: Block) -> list[str]:
    """The commands of a block of shell, without comments; a backslash joins lines."""
    lines = block.code.replace("\\\n", " ").splitlines()
    return [line.partition(" #")[0].strip() for line in lines if line.strip() and not line.startswith("#")]
