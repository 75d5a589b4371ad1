"""What users call says what its arguments are and shows an example, which runs."""

import doctest
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import sts_core
import sts_eval
import sts_methods

SHOWN = {
    sts_core: ("Smoother", "TeacherBank"),
    sts_methods: ("fit", "export", "export_to_hub_folder", "build_training_data"),
    sts_eval: (
        *("linear_probe", "nearest_neighbours", "corruption_robustness", "detection_transfer"),
        "write_report",
    ),
}
CALLED = [pytest.param(package, name, id=name) for package, names in SHOWN.items() for name in names]


@pytest.mark.parametrize(("package", "name"), CALLED)
def test_every_argument_is_explained(package: ModuleType, name: str) -> None:
    called: Callable[..., Any] = getattr(package, name)
    text = inspect.getdoc(called) or ""
    assert not [argument for argument in inspect.signature(called).parameters if f"`{argument}`" not in text]


@pytest.mark.parametrize(("package", "name"), CALLED)
def test_the_example_gives_what_it_says(package: ModuleType, name: str, tmp_path: Path) -> None:
    names = {**vars(package), "np": np, "torch": torch}
    (example,) = doctest.DocTestFinder(recurse=False).find(getattr(package, name), name, globs=names)
    assert example.examples
    told: list[str] = []
    place = Path.cwd()
    os.chdir(tmp_path)
    try:
        assert doctest.DocTestRunner().run(example, out=told.append).failed == 0, "".join(told)
    finally:
        os.chdir(place)
