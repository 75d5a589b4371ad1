"""Typed configs from plain dicts and from flags, with every problem of a config found in one pass."""

import dataclasses
import difflib
import types
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

from sts_core import ConfigError
from sts_pipelines.config.sections import chosen, field_types, kind_of, members_of, old_names, paths, settable, types_of
from sts_pipelines.config.yaml_text import read_yaml
from sts_pipelines.errors import SchemaError, UsageError

C = TypeVar("C")
_INVALID: Any = object()
_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


class FlagText(str):
    """A value typed on the command line: text that is still to be read as the field's type."""

    __slots__ = ()


class BareFlag(FlagText):
    """A flag without a value, which only a field of true and false may be."""

    __slots__ = ()


def from_dict(cls: type[C], plain: Mapping[str, Any]) -> C:
    """The config that `plain` describes, or a `SchemaError` that names all of its problems."""
    problems: list[str] = []
    config = _read_dataclass(cls, plain, "", problems)
    if problems:
        raise SchemaError(problems)
    return cast(C, config)


def _read_dataclass(cls: type, plain: Any, path: str, problems: list[str]) -> Any:
    if not isinstance(plain, Mapping):
        problems.append(f"{path or 'a config'} must be a section of settings, got {plain!r}: write key: value lines")
        return _INVALID
    known = field_types(cls)
    found = len(problems)
    plain = _renamed(cls, plain, path, problems)
    for key in plain:
        if key not in known:
            problems.append(_unknown(cls, f"{path}{key}", known, path, plain))
    values = _read_fields(cls, plain, path, problems)
    made = _made(cls, values, path, problems)
    return _INVALID if len(problems) > found else made


def _renamed(cls: type, plain: Mapping[str, Any], path: str, problems: list[str]) -> dict[str, Any]:
    """`plain` under the present names of its settings."""
    names = old_names(cls)
    for old in names.keys() & plain.keys():
        if names[old] in plain:
            problems.append(f"{path}{old} is the former name of {path}{names[old]}: give one of the two")
    return {names.get(key, key): value for key, value in plain.items()}


def _made(cls: type, values: dict[str, Any], path: str, problems: list[str]) -> Any:
    """`cls(**values)`. Its checks end at the first problem, so they are repeated without the values that it names."""
    hints = types_of(cls)
    required = {field.name for field in settable(cls) if _is_required(field)}
    kept = {name: value for name, value in values.items() if value is not _INVALID}
    replaceable = {name for name in values if name not in required and not members_of(hints[name])}
    wrong = values.keys() - kept.keys()
    if not (wrong <= replaceable and required <= kept.keys()):
        return _INVALID
    while True:
        try:
            return cls(**kept)
        except OverflowError:
            large = ", ".join(name for name, value in kept.items() if isinstance(value, int) and abs(value) > 2**63)
            problems.append(f"{path}{large} must be a number of usual size, got one of more than 63 bits")
            return _INVALID
        except ConfigError as error:
            if wrong.intersection(error.fields):  # perhaps only because these have their defaults now
                return _INVALID
            problems.append(f"{path.rstrip('.')}: {error}" if path else str(error))
            named = set(error.fields) & kept.keys() & replaceable
            if not named:
                return _INVALID
            wrong |= named
            kept = {name: value for name, value in kept.items() if name not in named}


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _read_fields(cls: type, plain: Mapping[str, Any], path: str, problems: list[str]) -> dict[str, Any]:
    hints = types_of(cls)
    values: dict[str, Any] = {}
    for field in settable(cls):
        if field.metadata.get("flatten"):
            own = {key: value for key, value in plain.items() if key in field_types(hints[field.name])}
            values[field.name] = _read_dataclass(hints[field.name], own, path, problems)
        elif "sections" in field.metadata:
            kinds = {name: kind for name, kind in field.metadata["sections"]().items() if name in plain}
            read = {name: _read(kind, plain[name], f"{path}{name}", problems) for name, kind in kinds.items()}
            values[field.name] = _INVALID if any(one is _INVALID for one in read.values()) else read
        elif field.name in plain:
            values[field.name] = _read(hints[field.name], plain[field.name], f"{path}{field.name}", problems)
        elif _is_required(field):
            problems.append(f"{path}{field.name} is missing: it has no default, give it a value")
    return values


def _read(annotation: Any, value: Any, path: str, problems: list[str]) -> Any:
    """`value` as `annotation`, or `_INVALID` with a problem noted."""
    origin = get_origin(annotation)
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        return _read_dataclass(annotation, value, f"{path}.", problems)
    if origin in (Union, types.UnionType):
        return _read_union(annotation, value, path, problems)
    if origin is Literal:
        return _read_literal(annotation, value, path, problems)
    if origin in (tuple, list):
        return _read_sequence(annotation, value, path, problems)
    if origin in (dict, Mapping) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return _read_mapping(annotation, value, path, problems)
    return _read_scalar(annotation, value, path, problems)


def _read_union(annotation: Any, value: Any, path: str, problems: list[str]) -> Any:
    options = get_args(annotation)
    if value is None or (isinstance(value, FlagText) and value.lower() in ("none", "null")):
        if type(None) in options:
            return None
        problems.append(f"{path} must not be empty: give it a value")
        return _INVALID
    members = members_of(annotation)
    if len(members) > 1:
        return _read_kind(members, value, path, problems)
    attempts: list[str] = []
    for option in options:
        if option is not type(None):
            tried: list[str] = []
            result = _read(option, value, path, tried)
            if not tried:
                return result
            attempts = attempts or tried
    problems.extend(attempts)
    return _INVALID


def _read_kind(members: tuple[type, ...], value: Any, path: str, problems: list[str]) -> Any:
    member = chosen(members, value)
    if member is None:
        kinds = ", ".join(kind_of(option) for option in members)
        got = value.get("kind") if isinstance(value, Mapping) else value
        problems.append(f"{path}.kind must be one of {kinds}, got {got!r}")
        return _INVALID
    return _read_dataclass(member, {k: v for k, v in value.items() if k != "kind"}, f"{path}.", problems)


def _read_literal(annotation: Any, value: Any, path: str, problems: list[str]) -> Any:
    for choice in get_args(annotation):
        if value == choice or (isinstance(value, FlagText) and str(value) == str(choice)):
            return choice
    choices = [str(choice) for choice in get_args(annotation)]
    problems.append(f"{path} must be one of {', '.join(choices)}, got {str(value)!r}{_did_you_mean(value, choices)}")
    return _INVALID


def _read_sequence(annotation: Any, value: Any, path: str, problems: list[str]) -> Any:
    options = get_args(annotation)
    if isinstance(value, FlagText):
        value = _split(value, nested=get_origin(options[0]) in (tuple, list))
    if not isinstance(value, list | tuple):
        problems.append(f"{path} must be a list, got {value!r}: {_how_to_write(options[0])}")
        return _INVALID
    if get_origin(annotation) is tuple and Ellipsis not in options and len(options) != len(value):
        problems.append(f"{path} must hold {len(options)} values, got {len(value)}")
        return _INVALID
    each = options if len(options) == len(value) and Ellipsis not in options else (options[0],) * len(value)
    items = [
        _read(kind, item, f"{path}[{i}]", problems) for i, (kind, item) in enumerate(zip(each, value, strict=True))
    ]
    if any(item is _INVALID for item in items):
        return _INVALID
    return tuple(items) if get_origin(annotation) is tuple else items


def _split(text: FlagText, *, nested: bool) -> Any:
    """The items of a list on the command line: a,b, nothing, or as YAML [a, b], which lists of lists need."""
    if text.startswith("["):
        try:
            return read_yaml(f"list: {text}")["list"]
        except UsageError:
            return str(text)
    return str(text) if nested and text else [FlagText(item) for item in text.split(",") if item]


def _how_to_write(item: Any) -> str:
    if get_origin(item) in (tuple, list):
        return "write [[a, b], [c, d]], in quotes on the command line"
    return "write [a, b], in quotes on the command line, or a,b there"


def _read_mapping(annotation: Any, value: Any, path: str, problems: list[str]) -> Any:
    if not isinstance(value, Mapping):
        problems.append(f"{path} must be a section of named entries, got {value!r}: write name: value lines")
        return _INVALID
    _, kind = get_args(annotation)
    entries = {str(key): _read(kind, item, f"{path}.{key}", problems) for key, item in value.items()}
    return _INVALID if any(entry is _INVALID for entry in entries.values()) else entries


def _read_scalar(annotation: Any, value: Any, path: str, problems: list[str]) -> Any:
    if isinstance(value, FlagText):
        return _read_text(annotation, value, path, problems)
    if annotation is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if annotation in _NAMES and (not isinstance(value, annotation) or (annotation is int and isinstance(value, bool))):
        problems.append(f"{path} must be {_NAMES[annotation]}, got {value!r}")
        return _INVALID
    return value


def _read_text(annotation: Any, text: FlagText, path: str, problems: list[str]) -> Any:
    if isinstance(text, BareFlag) and annotation is not bool:
        problems.append(f"--{path} needs a value: write --{path} VALUE")
        return _INVALID
    if annotation is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if annotation not in (bool, int, float):
        return str(text)
    if annotation is not bool and "_" not in text:
        try:
            return annotation(text)
        except ValueError:
            pass
    problems.append(f"{path} must be {_NAMES[annotation]}, got {str(text)!r}")
    return _INVALID


def _unknown(cls: type, path: str, known: Mapping[str, Any], prefix: str, plain: Mapping[str, Any]) -> str:
    name = path.removeprefix(prefix)
    near = difflib.get_close_matches(name, list(known), n=1)
    elsewhere = [option for option in paths(cls, plain, prefix) if option.split(".")[-1] == name]
    suggestions = elsewhere[:3] or [f"{prefix}{match}" for match in near]
    hint = f"did you mean {' or '.join(suggestions)}?" if suggestions else f"known here: {', '.join(sorted(known))}"
    return f"{path} is unknown: {hint}"


def _did_you_mean(value: Any, choices: list[str]) -> str:
    near = difflib.get_close_matches(str(value), choices, n=1)
    return f": did you mean {near[0]}?" if near else ""
