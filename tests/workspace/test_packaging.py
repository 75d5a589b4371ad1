"""Each package is built as a wheel and works when it is installed alone, with nothing but what it declares."""

import os
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from tests import processes

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "sts_core": ROOT / "packages/sts-core",
    "sts_methods": ROOT / "packages/sts-methods",
    "sts_eval": ROOT / "packages/sts-eval",
    "sts_pipelines": ROOT / "pipelines",
}
NEEDS = {
    "sts_core": ["sts_core"],
    "sts_methods": ["sts_core", "sts_methods"],
    "sts_eval": ["sts_core", "sts_eval"],
    "sts_pipelines": list(PACKAGES),
}
UV = os.environ.get("UV") or shutil.which("uv")

pytestmark = [
    pytest.mark.packaging,
    pytest.mark.skipif(UV is None, reason="uv builds and installs the wheels: run the tests through ci/test"),
]


def run(*command: object, cwd: Path = ROOT) -> str:
    """The command's output; a failure shows what it printed."""
    hidden = ("PYTHONPATH", "VIRTUAL_ENV", "UV_COMPILE_BYTECODE")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    done = processes.run(command, cwd=cwd, env=environment)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("wheels")
    for source in PACKAGES.values():
        run(UV, "build", "--quiet", "--wheel", "--out-dir", folder, source)
    return {name: next(folder.glob(f"{name}-*.whl")) for name in PACKAGES}


@pytest.mark.parametrize("package", list(PACKAGES))
def test_a_wheel_holds_its_code_types_and_data_and_no_tests(wheels: dict[str, Path], package: str) -> None:
    names = zipfile.ZipFile(wheels[package]).namelist()
    assert f"{package}/py.typed" in names
    sources = {f"{package}/{p.relative_to(PACKAGES[package] / 'src' / package)}" for p in _files(package)}
    assert sources <= set(names)
    assert not [name for name in names if name.startswith("tests") or "benchmarks" in name]


def _files(package: str) -> list[Path]:
    folder = PACKAGES[package] / "src" / package
    return [p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts]


@pytest.mark.parametrize("package", list(PACKAGES))
def test_a_package_installed_alone_imports(wheels: dict[str, Path], package: str, tmp_path: Path) -> None:
    python = tmp_path / "env/bin/python"
    run(UV, "venv", "--quiet", "--python", sys.executable, tmp_path / "env")
    run(UV, "pip", "install", "--quiet", "--python", python, *(wheels[name] for name in NEEDS[package]))
    others = [name for name in PACKAGES if name not in NEEDS[package]]
    check = f"import {package}, importlib.util as u; print([n for n in {others!r} if u.find_spec(n)])"
    assert run(python, "-c", check, cwd=tmp_path).strip() == "[]"
    if package == "sts_core":
        assert run(python, "-c", UPDATE, cwd=tmp_path).strip() == "1"


UPDATE = """
import torch
from sts_core import Smoother, make_teacher, spatial_temporal_smoothing
student = torch.nn.Linear(300, 200)
config = spatial_temporal_smoothing(0.99, 0.7, granularity="neuron")
smoother = Smoother(student=student, teacher=make_teacher(student), config=config, seed=0)
smoother.update()
print(smoother.step)
"""


def test_sts_core_needs_torch_and_nothing_else(wheels: dict[str, Path]) -> None:
    with zipfile.ZipFile(wheels["sts_core"]) as wheel:
        name = next(n for n in wheel.namelist() if n.endswith("METADATA"))
        lines = wheel.read(name).decode().splitlines()
    requirements = [line.split()[1] for line in lines if line.startswith("Requires-Dist:")]
    assert [r.split(">")[0] for r in requirements] == ["torch"]
