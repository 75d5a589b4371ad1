"""YAML for exchange: read by a loader that builds nothing but plain values, written in the order of the fields.

Four habits of YAML 1.1 are switched off because they change configs silently: `1e-4` is a number here and not text,
`1:30`, `1_0` and `010` are text and not 90, 10 and 8, `on`, `off`, `yes` and `no` are text and not booleans, and a key
given twice is an error. Anchors and aliases are
refused, so a small file cannot unfold into a large one.
"""

import re
from collections.abc import Mapping
from typing import Any

import yaml

from sts_pipelines.errors import UsageError

_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$|[-+]?\.inf$|\.nan$")

_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)$")


class _Loader(yaml.SafeLoader):
    """SafeLoader without the surprises named above."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not allowed")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.YAMLError(f"the key {key} is given twice in one section")
        return super().construct_mapping(node, deep)


def _resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    dropped = [f"tag:yaml.org,2002:{kind}" for kind in ("float", "int", "bool", "timestamp")]
    kept = {
        first: [(tag, pattern) for tag, pattern in options if tag not in dropped]
        for first, options in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    for first in "-+.0123456789":
        kept.setdefault(first, []).extend([("tag:yaml.org,2002:float", _FLOAT), ("tag:yaml.org,2002:int", _INT)])
    for first in "tTfF":
        kept.setdefault(first, []).append(("tag:yaml.org,2002:bool", re.compile(r"(?:true|True|false|False)$")))
    return kept


_Loader.yaml_implicit_resolvers = _resolvers()


def read_yaml(text: str, *, source: str = "the text") -> dict[str, Any]:
    """The mapping that a YAML text holds, or a one-line error that names the place."""
    try:
        loaded = yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader, see above
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(f"{source} is not valid YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise UsageError(f"{source} is nested too deeply to be a config") from error
    if not isinstance(loaded, dict):
        raise UsageError(f"{source} must hold a config (key: value lines), got {type(loaded).__name__}")
    if not isinstance(loaded.get("kind", ""), str):
        raise UsageError(f"kind must be a name such as pipeline, got {loaded['kind']!r} in {source}")
    return loaded


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes what `_Loader` would read as something else, and writes short lists on one line."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers
_Dumper.add_representer(
    list, lambda dumper, data: dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)
)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Unicode's own line breaks are escaped, which double quotes do: elsewhere YAML reads them as spaces."""
    style = '"' if set(text) & set("\x85\u2028\u2029") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def write_yaml(plain: Mapping[str, Any]) -> str:
    """YAML text that `read_yaml` turns back into `plain`."""
    return str(yaml.dump(dict(plain), Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True))
