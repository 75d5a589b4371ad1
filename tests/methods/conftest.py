"""Modules that several test files use, as fixtures: test files are not importable from one another."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


def beside(name: str) -> ModuleType:
    """The module of that name in this folder."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture(scope="session")
def tiny() -> ModuleType:
    """The module tiny_training.py."""
    return beside("tiny_training")


@pytest.fixture(scope="session")
def reference() -> ModuleType:
    """The module pillow_reference.py."""
    return beside("pillow_reference")
