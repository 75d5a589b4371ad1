"""The settings of a config by their dotted names: which there are, of what type, and under which names they were known.

A config is a tree of frozen dataclasses. Where a field may hold one of several dataclasses (the method), the plain form
names it by `kind`: `ByolConfig` is `kind: byol`. Three entries of a field's metadata count here: `choices`, a mapping,
lets the field be what is registered there, whoever registered it; `flatten` gives the field's own fields to its parent,
so that users write `seed` and not `training.seed`; `sections`, a function, names the keys and dataclasses of a mapping,
which stand beside the field's siblings too.
"""

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin

from sts_core.fields import first_name, former_names
from sts_methods import METHODS
from sts_pipelines.plugins import load_records


def kind_of(cls: type) -> str:
    """The name by which a dataclass is chosen among several: a method's own, else `SweepConfig` is `sweep`."""
    names = (name for name, config in METHODS.items() if config is cls)
    return next(names, cls.__name__.removesuffix("Config").lower())


def field_types(cls: type) -> dict[str, Any]:
    """Name and type of every key of a section's plain form, flattened fields included."""
    hints = types_of(cls)
    types_by_name: dict[str, Any] = {}
    for field in settable(cls):
        if field.metadata.get("flatten"):
            types_by_name |= field_types(hints[field.name])
        elif "sections" in field.metadata:
            types_by_name |= field.metadata["sections"]()
        else:
            types_by_name[field.name] = hints[field.name]
    return types_by_name


def old_names(cls: type) -> dict[str, str]:
    """The present name for each former one among the keys of a section's plain form."""
    names = former_names(cls)
    for field in settable(cls):
        if field.metadata.get("flatten"):
            names |= old_names(types_of(cls)[field.name])
    return names


def paths(cls: type, plain: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Every dotted name that may be set, given the kinds that `plain` chose."""
    for name, annotation in field_types(cls).items():
        section = plain.get(name)
        member = chosen(members_of(annotation), section)
        if member is None:
            yield f"{prefix}{name}"
        else:
            yield from paths(member, section if isinstance(section, Mapping) else {}, f"{prefix}{name}.")


def digested_name(cls: type, plain: Mapping[str, Any], path: str) -> str:
    """The dotted name under which digests know the setting at `path`."""
    names = path.split(".")
    found: list[str] = []
    for depth in range(1, len(names) + 1):
        holder = section_at(cls, plain, names[:depth])
        first = {field.name: first_name(field) for field in dataclasses.fields(holder)}
        found.append(first.get(names[depth - 1], names[depth - 1]))
    return ".".join(found)


def section_at(cls: type, plain: Mapping[str, Any], path: Sequence[str]) -> type:
    """The dataclass that holds the last name of `path`."""
    for name in path[:-1]:
        section = plain.get(name, {})
        member = section_type(cls, name, section)
        if member is None:
            return cls
        cls, plain = member, section
    return cls


def section_type(cls: type, name: str, section: Any) -> type | None:
    """The dataclass of a section of `cls`; None where there is no such section, or its kind is not chosen."""
    return chosen(members_of(field_types(cls).get(name)), section)


def types_of(cls: type) -> dict[str, Any]:
    """The type of each field; one with the metadata `choices` may be what is registered there at present."""
    load_records()
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if choices := field.metadata.get("choices"):
            text = hints[field.name] is str
            hints[field.name] = Literal[tuple(choices)] if text else Union[tuple(choices.values())]  # noqa: UP007
    return hints


def settable(cls: type) -> list[dataclasses.Field[Any]]:
    """The fields that the constructor takes; derived ones are not part of a config."""
    return [field for field in dataclasses.fields(cls) if field.init]


def members_of(annotation: Any) -> tuple[type, ...]:
    """The dataclasses that a field may hold."""
    options = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    return tuple(option for option in options if dataclasses.is_dataclass(option) and isinstance(option, type))


def chosen(members: tuple[type, ...], section: Any) -> type | None:
    if len(members) <= 1:
        return members[0] if members else None
    kind = section.get("kind") if isinstance(section, Mapping) else None
    spelled = str(kind).replace("_", "")  # older configs have no underscores
    return next((member for member in members if kind_of(member).replace("_", "") == spelled), None)
