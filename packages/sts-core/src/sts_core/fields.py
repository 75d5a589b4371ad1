"""What the fields of a config say about themselves: whether an outcome depends on them, and what they were called.

    @dataclass(frozen=True, kw_only=True)
    class DataConfig:
        views: str = field(default="byol", metadata=formerly("recipe"))
        num_workers: int = incidental(0)
        mirrored: bool = added(False)

`recipe` is still read wherever configs are, and digests know the field by that name; none knows `num_workers`, nor
`mirrored` where it is False: runs from before there was such a field keep their names.
"""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, asdict, field, fields, is_dataclass
from typing import Any

__all__ = [
    "added", "first_name", "flattened", "former_names", "formerly", "free", "incidental", "incidental_names",
    "is_digested", "is_free", "is_incidental", "outcome_relevant", "with_present_names",
]  # fmt: skip

_INCIDENTAL, _FREE, _FORMERLY, _ADDED = "incidental", "free", "formerly", "added"


def incidental(default: Any = MISSING, *, metadata: Mapping[str, Any] | None = None) -> Any:
    """A field on which no outcome depends: where data lies, how often something is saved or watched."""
    return field(default=default, metadata={**(metadata or {}), _INCIDENTAL: True})


def free(default: Any = MISSING, *, default_factory: Any = MISSING, metadata: Mapping[str, Any] | None = None) -> Any:
    """A field that changes the outcome, but is no part of the recipe or protocol: two seeds are runs of one recipe."""
    return field(default=default, default_factory=default_factory, metadata={**(metadata or {}), _FREE: True})


def added(default: Any, *, metadata: Mapping[str, Any] | None = None) -> Any:
    """A field that is younger than some runs, with the default that they had without it."""
    return field(default=default, metadata={**(metadata or {}), _ADDED: True})


def formerly(*names: str) -> dict[str, Any]:
    """Metadata of a renamed field: its former names, the oldest first. All are still read; the oldest is digested."""
    return {_FORMERLY: names}


def is_incidental(setting: Field[Any]) -> bool:
    """Whether no outcome depends on the field."""
    return bool(setting.metadata.get(_INCIDENTAL))


def is_digested(setting: Field[Any], value: Any) -> bool:
    """Whether digests know that the field has this value."""
    return not is_incidental(setting) and not (setting.metadata.get(_ADDED) and value == setting.default)


def is_free(setting: Field[Any]) -> bool:
    """Whether the field may differ between two instances of one recipe."""
    return is_incidental(setting) or bool(setting.metadata.get(_FREE))


def first_name(setting: Field[Any]) -> str:
    """The name under which the field was first written down, and is digested."""
    names: tuple[str, ...] = (*setting.metadata.get(_FORMERLY, ()), setting.name)
    return names[0]


def former_names(config: Any) -> dict[str, str]:
    """The present name for each former one among the fields of a config or its class."""
    return {former: setting.name for setting in fields(config) for former in setting.metadata.get(_FORMERLY, ())}


def outcome_relevant(config: Any, *, but_free: bool = False) -> dict[str, Any]:
    """Plain values of all that the outcome depends on, under their first names: what a digest is made of.

    `but_free` leaves out what is free, so that two seeds of one recipe are equal.
    """
    kept = [setting for setting in fields(config) if setting.init and not (but_free and is_free(setting))]
    values = [(setting, getattr(config, setting.name)) for setting in kept]
    return {first_name(setting): _plain(value, but_free) for setting, value in values if is_digested(setting, value)}


def incidental_names(config: Any, prefix: str = "") -> Iterator[str]:
    """The dotted names of all incidental fields, those of the sections included."""
    for setting in fields(config):
        value = getattr(config, setting.name)
        if is_incidental(setting):
            yield f"{prefix}{setting.name}"
        elif is_dataclass(value):
            yield from incidental_names(value, f"{prefix}{setting.name}.")


def with_present_names(config: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """`values`, saved from an earlier version of this config, under the present names and with all of its fields."""
    names = former_names(config)
    present = {setting.name: _as_saved(setting.default) for setting in fields(config) if setting.metadata.get(_ADDED)}
    present |= {names.get(name, name): value for name, value in values.items()}
    for name, value in present.items():
        section = getattr(config, name, None)
        if is_dataclass(section) and isinstance(value, Mapping):
            present[name] = with_present_names(section, value)
    return present


def _as_saved(default: Any) -> Any:
    """A default as it would stand in a file, a section as its values."""
    return asdict(default) if is_dataclass(default) and not isinstance(default, type) else default


def flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by dotted name: {"smoothing": {"momentum": 0.9}} is {"smoothing.momentum": 0.9}."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        section = isinstance(value, Mapping) and value
        flat |= flattened(value, f"{prefix}{name}.") if section else {f"{prefix}{name}": value}
    return flat


def _plain(value: Any, but_free: bool) -> Any:
    if is_dataclass(value):
        return outcome_relevant(value, but_free=but_free)
    if isinstance(value, Mapping):
        return {name: _plain(item, but_free) for name, item in value.items()}
    return [_plain(item, but_free) for item in value] if isinstance(value, list | tuple) else value
