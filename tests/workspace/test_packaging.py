"""Each package is built as a wheel and works when it is installed alone, with nothing but what it declares."""

import os
import re
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Callable
from email import message_from_bytes
from email.message import Message
from functools import cache
from pathlib import Path

import pytest

import sts_core
from sts_core.kernels import native
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


def run(*command: object, cwd: Path = ROOT, **environment: str) -> str:
    """The command's output; a failure shows what it printed."""
    hidden = ("PYTHONPATH", "VIRTUAL_ENV", "UV_COMPILE_BYTECODE")
    inherited = {key: value for key, value in os.environ.items() if key not in hidden}
    done = processes.run(command, cwd=cwd, env=inherited | environment)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution of each package, and the wheel that was built from it; or STS_DIST."""
    if ready := os.environ.get("STS_DIST"):
        return Path(ready)
    folder = tmp_path_factory.mktemp("built")
    for source in PACKAGES.values():
        build(folder, source)
    return folder


def build(folder: Path, source: Path, *options: str, **environment: str) -> None:
    isolation = ("--no-build-isolation", "--python", sys.executable)  # hatchling is there already
    run(UV, "build", "--quiet", *isolation, *options, "--out-dir", folder, source, **environment)


@pytest.fixture(scope="session")
def wheels(built: Path) -> dict[str, Path]:
    """One of each package; of sts-core, that of this platform."""
    return {name: max(built.glob(f"{name}-*.whl"), key=lambda wheel: "none-any" not in wheel.name) for name in PACKAGES}


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith("dist-info/METADATA"))
        return message_from_bytes(archive.read(name))


@pytest.mark.parametrize("package", list(PACKAGES))
def test_a_wheel_holds_its_code_types_licence_and_data_and_no_tests(wheels: dict[str, Path], package: str) -> None:
    names = zipfile.ZipFile(wheels[package]).namelist()
    assert f"{package}/py.typed" in names
    assert [name for name in names if name.endswith("dist-info/licenses/LICENSE")]
    sources = {f"{package}/{p.relative_to(PACKAGES[package] / 'src' / package)}" for p in _files(package)}
    assert sources <= set(names)
    assert not [name for name in names if name.startswith("tests") or "benchmarks" in name]


def _files(package: str) -> list[Path]:
    folder = PACKAGES[package] / "src" / package
    return [p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts]


@pytest.mark.parametrize("package", list(PACKAGES))
def test_a_source_distribution_holds_what_its_wheel_is_built_from(built: Path, package: str) -> None:
    with tarfile.open(next(built.glob(f"{package}-*.tar.gz"))) as archive:
        files = {member.name.partition("/")[2]: member for member in archive.getmembers()}
    expected = {str(file.relative_to(PACKAGES[package])) for file in _files(package)}
    assert expected | {"LICENSE", "README.md", "pyproject.toml", "hatch_build.py"} <= set(files)
    assert all(member.isfile() for member in files.values())


@pytest.mark.parametrize("package", list(PACKAGES))
def test_an_index_learns_what_people_look_for(wheels: dict[str, Path], package: str) -> None:
    metadata = metadata_of(wheels[package])
    assert metadata["Version"] == sts_core.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["License-File"] == "LICENSE"
    assert "https://arxiv.org/abs/2110.01253" in metadata["Project-URL"]
    assert {"Typing :: Typed", "Programming Language :: Python :: 3.11"} <= set(metadata.get_all("Classifier", []))
    assert len(metadata["Keywords"].split(",")) > 3
    assert metadata.get_payload(decode=True) == (PACKAGES[package] / "README.md").read_bytes()


@pytest.mark.parametrize("package", list(PACKAGES))
def test_packages_need_each_other_in_their_own_version(wheels: dict[str, Path], package: str) -> None:
    requirements = metadata_of(wheels[package]).get_all("Requires-Dist", [])
    others = [name.replace("_", "-") for name in NEEDS[package] if name != package]
    assert sorted(r for r in requirements if r.startswith("sts-")) == sorted(
        f"{name}=={sts_core.__version__}" for name in others
    )
    if package == "sts_core":
        assert [r.split(">")[0] for r in requirements] == ["torch"]


@pytest.fixture(scope="module")
def python_with(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The Python of an environment that holds a package, what it declares and nothing else; made once for each."""

    @cache
    def make(package: str) -> Path:
        folder = tmp_path_factory.mktemp(package)
        run(UV, "venv", "--quiet", "--python", sys.executable, folder / "env")
        python = folder / "env/bin/python"
        run(UV, "pip", "install", "--quiet", "--python", python, *(wheels[name] for name in NEEDS[package]))
        return python

    return make


@pytest.mark.parametrize("package", list(PACKAGES))
def test_a_package_installed_alone_imports(python_with: Callable[[str], Path], package: str, tmp_path: Path) -> None:
    others = [name for name in PACKAGES if name not in NEEDS[package]]
    check = f"import {package}, importlib.util as u; print([n for n in {others!r} if u.find_spec(n)])"
    assert run(python_with(package), "-c", check, cwd=tmp_path).strip() == "[]"


UPDATE = """
import copy, hashlib, torch
from sts_core import Smoother, SmoothingConfig, make_teacher

def updated(backend, m, granularity, p):
    teacher = make_teacher(student)
    for weight in teacher.parameters():
        weight.mul_(0.5)
    config = SmoothingConfig(momentum=m, preserve_probability=p, granularity=granularity)
    Smoother(student=student, teacher=teacher, config=config, seed=0, backend=backend).update()
    return torch.cat([weight.flatten() for weight in teacher.parameters()])

student, digest = torch.nn.Linear(300, 200), hashlib.sha256()
with torch.no_grad():  # torch's own initialisation depends on the instruction set
    for weight in student.parameters():
        weight.copy_(torch.arange(weight.numel()).view(weight.shape) / 7)
for granularity, p in (("channel", 0.7), ("neuron", 0.7), ("neuron", 0.99)):
    assert torch.equal(updated(FAST, 0.0, granularity, p), updated("reference", 0.0, granularity, p))
    digest.update(str(updated(FAST, 0.99, granularity, p).view(torch.int32).tolist()).encode())
print(digest.hexdigest(), *{line.split("/")[-1].strip() for line in open("/proc/self/maps") if "/native-" in line})
"""


def update(python: Path, folder: Path, backend: str, **environment: str) -> list[str]:
    """A digest of teachers after updates that the reference has confirmed, and the library that was loaded."""
    script = f"FAST = {backend!r}\n{UPDATE}"
    return run(python, "-c", script, cwd=folder, HOME=str(folder), XDG_CACHE_HOME=str(folder), **environment).split()


def test_the_wheel_needs_no_compiler_and_every_instruction_set_in_it_gives_the_same_bits(
    python_with: Callable[[str], Path], tmp_path: Path
) -> None:
    bare = {"PATH": str(tmp_path), "CC": ""}
    python = python_with("sts_core")
    plain, library = update(python, tmp_path, "native", ATEN_CPU_CAPABILITY="default", **bare)
    assert library == "native-baseline.so"
    best, library = update(python, tmp_path, "native", **bare)
    assert library == f"native-{native._instruction_set()}.so"
    assert best == plain
    assert not list(tmp_path.rglob("*.so"))


def test_a_pure_wheel_compiles_at_first_use_and_does_without_a_compiler(
    python_with: Callable[[str], Path], tmp_path: Path
) -> None:
    build(tmp_path / "wheels", PACKAGES["sts_core"], "--wheel", STS_CORE_PURE="1")
    (wheel,) = (tmp_path / "wheels").glob("*-py3-none-any.whl")
    run(UV, "pip", "install", "--quiet", "--no-deps", "--target", tmp_path / "pure", wheel)
    python, pure = python_with("sts_core"), {"PYTHONPATH": str(tmp_path / "pure")}
    bare = tmp_path / "bare"
    bare.mkdir()
    without = update(python, bare, "auto", PATH=str(bare), CC="", **pure)
    compiled, library = update(python, tmp_path, "native", **pure)
    assert len(without) == 1  # no library
    assert (tmp_path / "sts-core" / library).is_file()
    assert compiled == update(python, tmp_path, "native")[0]


def test_the_wheel_of_sts_core_is_of_a_platform_that_indexes_know_and_for_every_python(wheels: dict[str, Path]) -> None:
    assert re.search(r"-py3-none-(manylinux|musllinux|macosx)_\w+\.whl$", wheels["sts_core"].name)
    for package in set(PACKAGES) - {"sts_core"}:
        assert wheels[package].name.endswith("-py3-none-any.whl")
