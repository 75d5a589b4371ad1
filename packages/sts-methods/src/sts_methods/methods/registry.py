"""All methods by name and by config, collected from the records on their pages."""

from dataclasses import fields, is_dataclass
from typing import Any

from sts_core import ConfigError
from sts_methods.methods import byol, dino, fixmatch, mean_teacher, moco, moco_v3
from sts_methods.methods.base import MethodConfig, MethodRecord, StudentTeacherMethod

METHODS: dict[str, type[Any]] = {}
"""The config class of every method, by the method's name."""

_RECORDS: dict[type[Any], MethodRecord] = {}


def register_method(record: MethodRecord) -> None:
    """Make a method known by its name and config, as if it were one of ours.

    `fit`, resuming, the checks and the saved backbones then treat it like any other. Every process that meets its
    config has to import the module that calls this.

        register_method(MethodRecord(name="mine", config=MyConfig, build=MyMethod, views="byol"))
    """
    if METHODS.get(record.name, record.config) is not record.config:
        raise ConfigError(f"every method needs a name of its own, got {record.name!r} for a second one")
    named = {field.name for field in fields(record.config)} if is_dataclass(record.config) else set()
    needed = {"backbone", "stem"} | ({"num_classes"} if record.trains_classifier else set())
    if not needed <= named:
        raise ConfigError(
            f"the config of {record.name} must be a dataclass with the fields {', '.join(sorted(needed))}, "
            f"{record.config.__name__} lacks {', '.join(sorted(needed - named))}"
        )
    METHODS[record.name] = record.config
    _RECORDS[record.config] = record


for page in (byol, moco, moco_v3, fixmatch, mean_teacher, dino):
    register_method(page.RECORD)


def method_record(config: MethodConfig) -> MethodRecord | None:
    """The record of a method's config; None for one that was never registered."""
    return next((_RECORDS[kind] for kind in type(config).__mro__ if kind in _RECORDS), None)


def method_name(config: MethodConfig) -> str:
    """The name of a config's method, or its class's if it was never registered."""
    record = method_record(config)
    return type(config).__name__ if record is None else record.name


def build_method(config: MethodConfig, *, seed: int) -> StudentTeacherMethod:
    """The method that `config` describes, on the CPU and in train mode; its weights depend on config and seed alone."""
    record = method_record(config)
    if record is None:
        raise ConfigError(
            f"a method is one of {', '.join(METHODS)}, got {type(config).__name__}: register_method makes others known"
        )
    return record.build(config, seed=seed)
