"""What other people's packages bring: methods, views, datasets, evaluations and pipelines.

A package names a module of its own under one of the entry points `sts.methods`, `sts.datasets`, `sts.evaluations` and
`sts.pipelines`; imported, the module registers what it brings. Those of the first three are imported before a config
is read, those of the last with the catalog, so that they should import torch only where a config is built. A module
that is no package's is named by `sts --import MODULE` or, for all commands of a shell, by the variable STS_IMPORT.
"""

import importlib
import os
import sys
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points

VARIABLE = "STS_IMPORT"
"""The environment variable that names further modules, separated by commas; workers inherit it."""

_DONE: set[str] = set()


def also_import(modules: Iterable[str]) -> None:
    """Import these modules here and, through the environment, in the workers."""
    named = [*filter(None, os.environ.get(VARIABLE, "").split(",")), *modules]
    os.environ[VARIABLE] = ",".join(dict.fromkeys(named))
    _import_named()


def load_records() -> None:
    """Make the methods, datasets and evaluations of other packages known."""
    _load("sts.methods", "sts.datasets", "sts.evaluations")


def load_pipelines() -> None:
    """Enter the pipelines of other packages into the catalog."""
    _load("sts.pipelines")


def _load(*groups: str) -> None:
    """Import what packages name under these entry points, each once, and the modules of STS_IMPORT.

    A package that cannot be imported is reported and left out: it must not keep the others from working.
    """
    if _DONE.issuperset(groups):
        return
    _DONE.update(groups)  # first, since what is imported may read configs itself
    _import_named()
    for group in groups:
        for entry in entry_points(group=group):
            try:
                entry.load()
            except Exception as error:
                print(
                    f"sts: {_owner(entry)} is left out, since it cannot be imported: {_reason(error)}", file=sys.stderr
                )


def _import_named() -> None:
    for module in filter(None, os.environ.get(VARIABLE, "").split(",")):
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())  # which a console script does not search
        try:
            importlib.import_module(module)
        except Exception as error:
            from sts_pipelines.errors import UsageError  # here, because it imports torch

            message = f"the module {module} (--import or {VARIABLE}) cannot be imported: {_reason(error)}"
            raise UsageError(message) from error


def _owner(entry: EntryPoint) -> str:
    package = "a package" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
    return f"{entry.name} of {package} ({entry.group})"


def _reason(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
