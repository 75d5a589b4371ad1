"""What holds for the whole repository."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = [ROOT / "packages/sts-core", ROOT / "packages/sts-methods", ROOT / "packages/sts-eval", ROOT / "pipelines"]


def project(folder: Path) -> dict[str, object]:
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


def test_versions_are_in_lock_step() -> None:
    versions = {str(project(folder)["version"]) for folder in [ROOT, *PACKAGES]}
    assert len(versions) == 1
    (version,) = versions
    for folder in PACKAGES:
        for requirement in project(folder)["dependencies"]:
            if requirement.startswith("sts-"):
                assert requirement.endswith(f"=={version}"), f"{folder.name}: {requirement}"


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda folder: folder.name)
def test_a_package_has_its_readme_changelog_and_types(folder: Path) -> None:
    assert (folder / "CHANGELOG.md").read_text().startswith("# Changelog")
    assert len((folder / "README.md").read_text().splitlines()) > 20
    assert list(folder.glob("src/*/py.typed"))


def tracked() -> list[Path]:
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listing.stdout.splitlines() if (ROOT / name).exists()]


def test_no_lock_file_and_no_package_index_is_named() -> None:
    files = tracked()
    assert not [f for f in files if f.name == "uv.lock"]
    pattern = re.compile(r"--(extra-)?index-url|--find-links|https?://[^\s\"]*/simple\b")
    found = [f for f in files if f.suffix in (".toml", ".md", ".sh", ".py", "") and f != Path(__file__)]
    assert not [f for f in found if pattern.search(f.read_text(errors="ignore"))]


def test_no_module_has_a_name_that_says_nothing() -> None:
    vague = {"utils.py", "helpers.py", "common.py", "misc.py", "util.py"}
    assert not [f for f in tracked() if f.name in vague]


def test_every_test_function_asserts() -> None:
    import ast

    words = ("assert", "raises", "warns")
    silent = []
    for file in tracked():
        if file.name.startswith("test_") and file.suffix == ".py":
            for node in ast.walk(ast.parse(file.read_text())):
                named = isinstance(node, ast.FunctionDef) and node.name.startswith("test")
                if named and not any(word in ast.unparse(node) for word in words):
                    silent.append(f"{file.name}:{node.lineno}")
    assert not silent
