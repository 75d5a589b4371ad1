"""sts new: a method or a pipeline of your own, as a module that runs, with its test.

Two files are written into the current folder: NAME.py and test_NAME.py. Nothing that is there is replaced.
"""

import argparse
import importlib.util
import keyword
import re
from importlib.resources import files
from pathlib import Path

EXAMPLES = """  sts new method my-method
  sts run my-method-digits --import my_method
  sts new pipeline my-digits"""
TAKES_OVERRIDES = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=("method", "pipeline"), help="what to begin")
    parser.add_argument("name", help="its name, such as my-method")


def run(arguments: argparse.Namespace, overrides: list[str]) -> int:
    from sts_pipelines.catalog import CATALOG
    from sts_pipelines.errors import UsageError

    name = arguments.name.replace("_", "-")
    module = name.replace("-", "_")
    pipeline = name if arguments.kind == "pipeline" else f"{name}-digits"
    if not re.fullmatch("[a-z][a-z0-9]*(-[a-z0-9]+)*", name) or not module.isidentifier():
        raise UsageError(f"a name has small letters, digits and, between them, '-', got {arguments.name!r}")
    if pipeline in CATALOG:
        raise UsageError(f"{pipeline} is a pipeline of sts already: choose another name")
    if arguments.kind == "method":
        from sts_methods import METHODS  # here, because it imports torch

        if module in METHODS:
            raise UsageError(f"{module} is a method of sts already: choose another name")
    written = {Path(f"{module}.py"): arguments.kind, Path(f"test_{module}.py"): f"{arguments.kind}_test"}
    for path in written:
        if path.exists():
            raise UsageError(f"{path} is there already: move it, or choose another name")
    if keyword.iskeyword(module) or importlib.util.find_spec(module) is not None:
        raise UsageError(f"{module} means something else to Python already: choose another name")
    for path, skeleton in written.items():
        path.write_text(_named(files("sts_pipelines.cli.skeletons").joinpath(f"{skeleton}.txt").read_text(), name))
    print(f"wrote {' and '.join(map(str, written))}")
    print(f"  run it:  sts run {pipeline} --import {module}\n  test it: python -m pytest test_{module}.py")
    return 0


def _named(text: str, name: str) -> str:
    words = {"_name_": name.replace("-", "_"), "NAME": name, "Name_": name.replace("-", " ").title().replace(" ", "")}
    for placeholder, word in words.items():
        text = re.sub(rf"(?<![a-z]){placeholder}(?![a-z])", word, text)
    return text
