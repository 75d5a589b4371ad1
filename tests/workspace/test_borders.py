"""Across a package's border only public names are imported, and no room is crowded."""

import ast
import dataclasses
import importlib
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import sts_eval
from sts_methods import TrainingConfig, describe_training, recipes

ROOT = Path(__file__).parents[2]
SOURCES = {
    "sts_core": ROOT / "packages/sts-core/src/sts_core",
    "sts_methods": ROOT / "packages/sts-methods/src/sts_methods",
    "sts_eval": ROOT / "packages/sts-eval/src/sts_eval",
    "sts_pipelines": ROOT / "pipelines/src/sts_pipelines",
}
UNLIMITED = {"verbs", "catalog"}
LACKED_BY_WINDOWS = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
MOST_MODULES = 14


def imports_across(package: str) -> Iterator[tuple[str, str, str]]:
    """(file, module, name) for every import from another of our packages; `import a.b` has no name."""
    for file in SOURCES[package].rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                found = [(node.module or "", alias.name) for alias in node.names]
            elif isinstance(node, ast.Import):
                found = [(alias.name, "") for alias in node.names]
            else:
                continue
            for module, name in found:
                if module.partition(".")[0] in set(SOURCES) - {package}:
                    yield file.name, module, name


def is_public(module: str, name: str) -> bool:
    """`from package import name`, or `from package.module import name` where the module is itself a public name."""
    package, _, inner = module.partition(".")
    exported = importlib.import_module(package)
    if not inner:
        return name in exported.__all__
    public = getattr(exported, inner, None) if inner in exported.__all__ else None
    return isinstance(public, ModuleType) and name in public.__all__


@pytest.mark.parametrize("package", SOURCES)
def test_every_import_across_a_border_is_of_a_public_name(package: str) -> None:
    crossings = list(imports_across(package))
    assert package == "sts_core" or crossings
    assert not sorted({f"{file}: {module}.{name}" for file, module, name in crossings if not is_public(module, name)})


@pytest.mark.parametrize("package", SOURCES)
def test_public_names_exist_and_stand_once(package: str) -> None:
    module = importlib.import_module(package)
    assert len(module.__all__) == len(set(module.__all__))
    assert not [name for name in module.__all__ if not hasattr(module, name)]


@pytest.mark.parametrize("package", SOURCES)
def test_every_room_says_what_lives_there_and_none_is_crowded(package: str) -> None:
    for folder in [path.parent for path in SOURCES[package].rglob("__init__.py")]:
        sentence = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
        assert sentence, folder
        modules = [file for file in folder.glob("*.py") if file.name != "__init__.py"]
        assert folder.name in UNLIMITED or len(modules) <= MOST_MODULES, folder


@pytest.mark.parametrize("package", ["sts_core", "sts_methods", "sts_eval"])
def test_no_module_is_imported_that_windows_lacks(package: str) -> None:
    found = set()
    for file in SOURCES[package].rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {(file.name, alias.name) for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add((file.name, node.module or ""))
    assert ("files.py", "os") in found or package != "sts_core"
    assert not [(file, module) for file, module in found if module.partition(".")[0] in LACKED_BY_WINDOWS]


def config_classes(kind: type) -> Iterator[type]:
    """A config's dataclass and those of its sections, all methods included."""
    yield kind
    for field in dataclasses.fields(kind):
        inner = typing.get_type_hints(kind)[field.name]
        choices = field.metadata.get("choices", {}).values() if inner is not str else ()
        for section in (*choices, inner):
            if dataclasses.is_dataclass(section):
                yield from config_classes(section)


def strings_of(package: str) -> set[str]:
    """Every text in the code of a package, docstrings included."""
    nodes = [node for file in SOURCES[package].rglob("*.py") for node in ast.walk(ast.parse(file.read_text()))]
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_eval_knows_no_field_of_the_configs_of_methods() -> None:
    """It reads training.json, whose words are few; the fields behind them may be renamed and moved."""
    told = describe_training(recipes.moco_imagenet())
    paths = [path for path in told["settings"] if "." in path]
    assert not [(path, text) for text in strings_of("sts_eval") for path in paths if path in text.replace("-", "_")]
    fields = {field.name for kind in config_classes(TrainingConfig) for field in dataclasses.fields(kind)}
    own = {*told, *told["conditions"], *told["smoothing"]}
    own |= set(describe_training(recipes.fixmatch_cifar())["conditions"])
    for kind in (sts_eval.LinearProbeConfig, sts_eval.DetectionConfig, sts_eval.FeatureConfig, sts_eval.Evaluation):
        own |= {field.name for field in dataclasses.fields(kind)}
    # Words of its own: views of arrays, the folder of evaluated images, resizing, normalisation, classes, the vote's T,
    # student or teacher, where weights are in a file, drift.
    own |= {
        "views",
        "root",
        "interpolation",
        "mean",
        "std",
        "num_classes",
        "temperature",
        "network",
        "prefix",
        "weights",
    }
    assert not sorted((fields - own) & strings_of("sts_eval"))
