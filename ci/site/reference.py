"""Pages of the site that are made from the code: public names by the rooms they live in, commands, pipelines."""

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from sphinx.ext.napoleon import Config, GoogleDocstring

HOSTS = ("lightning", "transformers", "timm", "lightly", "parameter_lists")
ALSO_PUBLIC = {"sts_core": ("sts_core.testing", *(f"sts_core.integrations.{host}" for host in HOSTS))}


def write_pages(folder: Path, packages: list[str]) -> None:
    """One page per package, one of the commands and one of the pipelines, into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = {package: _names(package) for package in packages} | {"commands": _commands(), "catalog": _pipelines()}
    for name, lines in pages.items():
        page, text = folder / f"{name}.md", "\n".join(lines) + "\n"
        if not page.exists() or page.read_text() != text:  # Sphinx reads again what is newer
            page.write_text(text)


def _names(package: str) -> Iterator[str]:
    """Every public name of a package, below the sentence of its room."""
    module = importlib.import_module(package)
    yield f"# Reference: {package}\n\n{inspect.getdoc(module)}\n"
    homes = _homes(module)
    by_room: dict[str, list[str]] = {package: []}
    for name in module.__all__:
        thing = getattr(module, name)
        room = thing.__name__ if isinstance(thing, ModuleType) else _room(homes[name])
        by_room.setdefault(room if room.startswith(package) else package, []).append(name)
    for room in [package, *sorted(set(by_room) - {package})]:
        if room != package:
            yield f"## {room.partition('.')[2]}\n\n{inspect.getdoc(importlib.import_module(room))}\n"
        for name in by_room[room]:
            yield _entry(package, homes[name], name, getattr(module, name))
    for inner in ALSO_PUBLIC.get(package, ()):
        yield f"## {inner.partition('.')[2]}\n\n{_directive('automodule', inner, ':members:')}"


def _homes(package: ModuleType) -> dict[str, str]:
    """The module that each public name is imported from, read from the package's `__init__`."""
    nodes = ast.walk(ast.parse(Path(str(package.__file__)).read_text()))
    return {alias.name: str(node.module) for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}


def _room(home: str) -> str:
    """The sub-package in which a module lies, or the package itself."""
    parts = home.split(".")
    return ".".join(parts[:2]) if len(parts) > 2 else parts[0]


def _entry(package: str, home: str, name: str, thing: object) -> str:
    if not home.startswith(package):
        return f"`{name}` is that of [{home}]({home}.md).\n"
    if isinstance(thing, ModuleType):
        return "\n".join(_entry(package, thing.__name__, inner, getattr(thing, inner)) for inner in thing.__all__)
    if inspect.isclass(thing):
        return _directive("autoclass", f"{home}.{name}", ":members:")
    return _directive("autofunction" if inspect.isroutine(thing) else "autodata", f"{home}.{name}")


def _directive(kind: str, path: str, *options: str) -> str:
    return "\n".join(["```{eval-rst}", f".. {kind}:: {path}", *(f"   {option}" for option in options), "```", ""])


def _commands() -> Iterator[str]:
    """`sts --help` and that of every verb."""
    from sts_pipelines.cli.main import build_parser

    parser, verbs = build_parser()
    yield f"# Reference: the command sts\n\n```text\n{parser.format_help()}```\n"
    for name, verb in verbs.items():
        yield f"## sts {name}\n\n```text\n{verb.format_help()}```\n"


def _pipelines() -> Iterator[str]:
    """What `sts list` prints, and the description of every pipeline."""
    from sts_pipelines.catalog import CATALOG

    yield "# Reference: pipelines by name\n\nWhat `sts list` prints; est.: by a model, on A100 / RTX 2080 Ti.\n"
    yield "| name | paper | hardware | hours | with --precision bfloat16 |\n|---|---|---|---|---|"
    for name, entry in CATALOG.items():
        yield f"| [{name}](#{name}) | {entry.paper} | {entry.hardware} | {entry.hours} | {entry.bfloat16} |"
    for name, entry in CATALOG.items():
        yield f"\n## {name}\n\n```text\n{entry.description}\n```"


def read_docstring(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Makes reStructuredText of a docstring: indented paragraphs are code, `Args:` and its like are lists."""
    marked: list[str] = []
    for before, line in zip(["", *lines], lines, strict=False):
        starts = line.startswith("    ") and not before.strip() and not _is_inside(marked)
        marked += [".. code-block::", "", line] if starts else [line.replace("|", r"\|")]
    sections = what not in ("attribute", "data", "property")  # there, napoleon would take `word: text` for a type
    lines[:] = str(GoogleDocstring(marked, Config(napoleon_use_rtype=False), app)).splitlines() if sections else marked


def _is_inside(lines: list[str]) -> bool:
    """Whether a new paragraph would continue an indented one, or a section such as `Args:`."""
    text = [line for line in lines if line.strip()]
    return bool(text) and (text[-1].startswith(" ") or (text[-1].endswith(":") and text[-1].split(":")[0].isalpha()))
