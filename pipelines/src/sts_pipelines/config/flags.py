"""Overrides of any config field, typed on the command line as `--section.field value`, and the help that lists them."""

import ast
import copy
import dataclasses
import functools
import inspect
import textwrap
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sts_core.fields import flattened
from sts_pipelines.config.reading import BareFlag, FlagText
from sts_pipelines.config.sections import field_types, old_names, paths, section_at, section_type
from sts_pipelines.errors import UsageError

Flag = tuple[list[str], FlagText]


def apply_flags(cls: type, plain: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, Any]:
    """`plain`, of a `cls`, with every override in `tokens` in it; `from_dict` then checks names and values."""
    return set_flags(cls, plain, read_flags(tokens))


def set_flags(cls: type, plain: Mapping[str, Any], flags: Iterable[Flag]) -> dict[str, Any]:
    """`plain`, of a `cls`, with the values of `flags` in it; a former name sets what now has another."""
    result = copy.deepcopy(dict(plain))
    for path, text in flags:
        _set_(cls, result, path, text)
    return result


def _set_(cls: type | None, section: dict[str, Any], path: Sequence[str], text: FlagText) -> None:
    name = path[0] if cls is None else _present_name_(section, path[0], cls)
    if len(path) == 1:
        section[name] = _with_entry(section.get(name), text) if cls is not None and _is_table(cls, name) else text
        return
    if not isinstance(section.get(name), dict):
        section[name] = _new_section(section)
    _set_(cls and section_type(cls, name, section[name]), section[name], path[1:], text)


def _is_table(cls: type, name: str) -> bool:
    """Whether a setting is a list of values for each of several names."""
    annotation = field_types(cls).get(name)
    origin = typing.get_origin(annotation)
    lists = isinstance(origin, type) and issubclass(origin, Mapping)
    return lists and typing.get_origin(typing.get_args(annotation)[1]) is tuple


def _with_entry(table: Any, text: FlagText) -> Any:
    """A table with what `name=a,b` says; the flag may be given once for each name."""
    name, equals, values = text.partition("=")
    present = dict(table) if isinstance(table, Mapping) else {}
    return present | {name.replace("-", "_"): FlagText(values)} if equals else text


def _present_name_(section: dict[str, Any], typed: str, cls: type) -> str:
    """The present name of a setting, under which the section now holds it, too."""
    name = old_names(cls).get(typed, typed)
    for old in [old for old, new in old_names(cls).items() if new == name and old in section]:
        section[name] = section.pop(old)
    return name


def _new_section(siblings: Mapping[str, Any]) -> dict[str, Any]:
    """Empty; but a new teacher beside others treats buffers as the first of them: the method needs them so."""
    others = list(siblings.values())
    if others and all(isinstance(other, dict) and "buffers" in other for other in others):
        return {"buffers": others[0]["buffers"]}
    return {}


def read_flags(tokens: Sequence[str]) -> Iterator[Flag]:
    """Path and text of every override.

    Both `--data.root X` and `--data.root=X` are read, dashes and underscores are the same, and a flag without a
    value means true. A list is written a,b or '[a, b]', one of lists '[[a, b], [c, d]]', an empty one '[]'.
    """
    pending = list(tokens)
    while pending:
        flag = pending.pop(0)
        if not flag.startswith("--") or flag == "--":
            raise UsageError(
                f"overrides are written --section.field value, got {flag!r}: put its flag before the value"
            )
        name, equals, value = flag[2:].partition("=")
        path = name.replace("-", "_").split(".")
        if equals:
            yield path, FlagText(value)
        elif pending and not pending[0].startswith("--"):
            yield path, FlagText(pending.pop(0))
        else:
            yield path, BareFlag("true")


def describe_flags(cls: type, plain: Mapping[str, Any]) -> str:
    """One entry for each flag that `plain` can be overridden with: its name, present value and meaning."""
    values = flattened(plain)
    lines: list[str] = []
    for path in paths(cls, plain):
        names = path.split(".")
        section = section_at(cls, plain, names)
        doc = field_docs(section).get(names[-1], "") + _choices(section, names[-1])
        lines.append(f"--{path.replace('_', '-')}  ({values.get(path)})")
        lines.extend(textwrap.wrap(doc, width=110, initial_indent="    ", subsequent_indent="    "))
    return "\n".join(lines)


def _choices(section: type, name: str) -> str:
    """What is registered for a field that is chosen by name."""
    choices = [field.metadata.get("choices") for field in dataclasses.fields(section) if field.name == name]
    return "".join(f" One of {', '.join(map(str, known.values()))}." for known in choices if known)


@functools.cache
def field_docs(cls: type) -> Mapping[str, str]:
    """The line written under each field of a dataclass and of the dataclasses flattened into it."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, line in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(line, ast.Expr):
                docs[field.target.id] = _text(line)
    return docs | _flattened_docs(cls)


def _text(line: ast.Expr) -> str:
    value = line.value.value if isinstance(line.value, ast.Constant) else ""
    return " ".join(str(value).split())


def _flattened_docs(cls: type) -> dict[str, str]:
    docs: dict[str, str] = {}
    for field in dataclasses.fields(cls):
        if field.metadata.get("flatten"):
            docs |= field_docs(typing.get_type_hints(cls)[field.name])
    return docs
