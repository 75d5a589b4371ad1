"""Typed configs to plain dicts and back, with every problem of a config found in one pass.

A config is a tree of frozen dataclasses. Its plain form is what YAML files, `sts show`, run folders, Ray workers and
Tune's search space hold: nested dicts of JSON types, keyed by field names. Where a field may hold one of several
dataclasses (the method), the plain form names it by `kind`: `ByolConfig` is `kind: byol`. Three entries of a field's
metadata count here: `choices`, a mapping, lets the field be what is registered there, whoever registered it; `flatten`
gives the field's own fields to its parent, so that users write `seed` and not `training.seed`; `sections`, a function,
names the keys and dataclasses of a mapping, which stand beside the field's siblings too.
"""

import dataclasses
import difflib
import hashlib
import json
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

from sts_core import ConfigError
from sts_core.fields import first_name, flattened, former_names, is_digested
from sts_methods import METHODS
from sts_pipelines.config.yaml_text import read_yaml
from sts_pipelines.errors import SchemaError, UsageError
from sts_pipelines.plugins import load_records

C = TypeVar("C")
_INVALID: Any = object()
_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


class FlagText(str):
    """A value typed on the command line: text that is still to be read as the field's type."""

    __slots__ = ()


class BareFlag(FlagText):
    """A flag without a value, which only a field of true and false may be."""

    __slots__ = ()


def kind_of(cls: type) -> str:
    """The name by which a dataclass is chosen among several: a method's own, else `SweepConfig` is `sweep`."""
    names = (name for name, config in METHODS.items() if config is cls)
    return next(names, cls.__name__.removesuffix("Config").lower())


def to_dict(config: Any, *, to_digest: bool = False) -> dict[str, Any]:
    """The plain form of a config; `to_digest` gives what its outcome depends on, under first names."""
    plain: dict[str, Any] = {}
    hints = _types(type(config))
    for field in _settable(type(config)):
        value, tagged = getattr(config, field.name), len(_members(hints[field.name])) > 1
        if field.metadata.get("flatten"):
            plain.update(to_dict(value, to_digest=to_digest))
        elif "sections" in field.metadata:
            plain.update({name: to_dict(section, to_digest=to_digest) for name, section in value.items()})
        elif not to_digest:
            plain[field.name] = _to_plain(value, tagged=tagged)
        elif is_digested(field, value):
            plain[first_name(field)] = _to_plain(value, tagged=tagged, to_digest=True)
    return plain


def from_dict(cls: type[C], plain: Mapping[str, Any]) -> C:
    """The config that `plain` describes, or a `SchemaError` that names all of its problems."""
    problems: list[str] = []
    config = _read_dataclass(cls, plain, "", problems)
    if problems:
        raise SchemaError(problems)
    return cast(C, config)


def outcome_relevant(config: Any) -> dict[str, Any]:
    """The plain form of all that the outcome of a config depends on, to be digested."""
    return to_dict(config, to_digest=True)


def digest(plain: Mapping[str, Any], *, ignore: Iterable[str] = ()) -> str:
    """Eight hex digits of plain values, without the dotted names in `ignore`: equal ones have equal digests."""
    kept = {path: value for path, value in flattened(plain).items() if path not in set(ignore)}
    if "method.kind" in kept:  # run folders are named after its spelling without underscores
        kept["method.kind"] = str(kept["method.kind"]).replace("_", "")
    canonical = json.dumps(kept, sort_keys=True, allow_nan=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:8]


def field_types(cls: type) -> dict[str, Any]:
    """Name and type of every key of a section's plain form, flattened fields included."""
    hints = _types(cls)
    types_by_name: dict[str, Any] = {}
    for field in _settable(cls):
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
    for field in _settable(cls):
        if field.metadata.get("flatten"):
            names |= old_names(_types(cls)[field.name])
    return names


def paths(cls: type, plain: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Every dotted name that may be set, given the kinds that `plain` chose."""
    for name, annotation in field_types(cls).items():
        section = plain.get(name)
        member = _choose(_members(annotation), section)
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
    return _choose(_members(field_types(cls).get(name)), section)


def _types(cls: type) -> dict[str, Any]:
    """The type of each field; one with the metadata `choices` may be what is registered there at present."""
    load_records()
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if choices := field.metadata.get("choices"):
            text = hints[field.name] is str
            hints[field.name] = Literal[tuple(choices)] if text else Union[tuple(choices.values())]  # noqa: UP007
    return hints


def _settable(cls: type) -> list[dataclasses.Field[Any]]:
    """The fields that the constructor takes; derived ones are not part of a config."""
    return [field for field in dataclasses.fields(cls) if field.init]


def _to_plain(value: Any, *, tagged: bool = False, to_digest: bool = False) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kind = {"kind": kind_of(type(value))} if tagged else {}
        return kind | to_dict(value, to_digest=to_digest)
    if isinstance(value, Mapping):
        return {str(key): _to_plain(item, to_digest=to_digest) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain(item, to_digest=to_digest) for item in value]
    return value


def _members(annotation: Any) -> tuple[type, ...]:
    """The dataclasses that a field may hold."""
    options = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    return tuple(option for option in options if dataclasses.is_dataclass(option) and isinstance(option, type))


def _choose(members: tuple[type, ...], section: Any) -> type | None:
    if len(members) <= 1:
        return members[0] if members else None
    kind = section.get("kind") if isinstance(section, Mapping) else None
    spelled = str(kind).replace("_", "")  # older configs have no underscores
    return next((member for member in members if kind_of(member).replace("_", "") == spelled), None)


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
    hints = _types(cls)
    required = {field.name for field in _settable(cls) if _is_required(field)}
    kept = {name: value for name, value in values.items() if value is not _INVALID}
    replaceable = {name for name in values if name not in required and not _members(hints[name])}
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
    hints = _types(cls)
    values: dict[str, Any] = {}
    for field in _settable(cls):
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
    members = _members(annotation)
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
    member = _choose(members, value)
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
        problems.append(f"{path} must hold {len(options)} values, got {len(value)}: give exactly that many")
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
