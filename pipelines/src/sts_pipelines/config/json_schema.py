"""The JSON Schema of YAML files for `sts run`, by which editors complete and check them."""

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin

from sts_pipelines.config.flags import field_docs
from sts_pipelines.config.sections import field_types, kind_of, old_names

_SCALARS = {int: "integer", float: "number", bool: "boolean", str: "string"}


def json_schema(*classes: type) -> dict[str, Any]:
    """The schema of a file that holds one of these configs, chosen by its `kind`."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A pipeline of sts",
        "anyOf": [_section(cls, kind=kind_of(cls)) for cls in classes],
    }


def _section(cls: type, *, kind: str | None = None) -> dict[str, Any]:
    """The schema of a dataclass; `kind` is what distinguishes it from others at the same place."""
    docs, known = field_docs(cls), field_types(cls)
    named = known | {old: known[new] for old, new in old_names(cls).items()}
    properties = {name: _value(annotation) | _described(docs.get(name)) for name, annotation in named.items()}
    if kind is not None:
        properties = {"kind": {"const": kind}, **properties}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _described(text: str | None) -> dict[str, str]:
    return {"description": text} if text else {}


def _value(annotation: Any) -> dict[str, Any]:
    origin, options = get_origin(annotation), get_args(annotation)
    if annotation is type(None):
        return {"type": "null"}
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        return _section(annotation)
    if origin in (Union, types.UnionType):
        several = sum(dataclasses.is_dataclass(option) for option in options) > 1
        return {"anyOf": [_section(one, kind=kind_of(one)) if several else _value(one) for one in options]}
    if origin is Literal:
        return {"enum": list(options)}
    if origin in (tuple, list):
        return _list(options)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _value(options[1])}
    return {"type": _SCALARS[annotation]} if annotation in _SCALARS else {}


def _list(options: tuple[Any, ...]) -> dict[str, Any]:
    """A list of one type, or of as many values as there are types."""
    if len(options) == 1 or Ellipsis in options:
        return {"type": "array", "items": _value(options[0])}
    return {"type": "array", "prefixItems": [*map(_value, options)], "minItems": len(options), "maxItems": len(options)}
