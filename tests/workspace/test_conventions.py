"""What holds for the whole repository."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

import sts_core
import sts_eval
import sts_methods
from tests import processes

ROOT = Path(__file__).parents[2]
PACKAGES = [ROOT / "packages/sts-core", ROOT / "packages/sts-methods", ROOT / "packages/sts-eval", ROOT / "pipelines"]


def test_the_version_is_written_once() -> None:
    written = [f for f in tracked() if f.name == "pyproject.toml" and f.parent in PACKAGES]
    assert len(written) == len(PACKAGES)
    assert not [f for f in [*written, ROOT / "CITATION.cff"] if sts_core.__version__ in f.read_text()]
    for folder in PACKAGES:
        found = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["hatch"]["version"]["path"]
        assert (folder / found).samefile(sts_core.__file__)


def test_what_every_distribution_brings_itself_is_the_same_in_all() -> None:
    assert {(folder / "LICENSE").read_bytes() for folder in PACKAGES} == {(ROOT / "LICENSE").read_bytes()}
    assert len({(folder / "hatch_build.py").read_bytes() for folder in PACKAGES if folder.name != "sts-core"}) == 1


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda folder: folder.name)
def test_a_package_has_its_readme_and_types(folder: Path) -> None:
    assert len((folder / "README.md").read_text().splitlines()) > 20
    assert list(folder.glob("src/*/py.typed"))


def test_the_changelog_has_this_version() -> None:
    changelog = (ROOT / ".github/CHANGELOG.md").read_text()
    assert sts_core.__version__ in re.findall(r"(?m)^## \[([\d.]+)\](?: - \d{4}-\d\d-\d\d)?$", changelog)


def test_the_readme_names_tests_that_exist() -> None:
    named = re.findall(r"\[([\w ]+)\]\((tests/[\w/]+\.py)\)", (ROOT / "README.md").read_text())
    assert len(named) > 10
    functions = [(f"def test_{words.replace(' ', '_')}(", (ROOT / path).read_text()) for words, path in named]
    assert not [function for function, text in functions if function not in text]


def test_nothing_else_lies_at_the_top() -> None:
    top = {path.relative_to(ROOT).parts[0] for path in tracked()}
    expected = {"pyproject.toml", "README.md", "packages", "pipelines", "tests", "ci", "LICENSE", "CITATION.cff"}
    assert {name for name in top if not name.startswith(".")} == expected


def tracked() -> list[Path]:
    listing = processes.run(["git", "ls-files"], cwd=ROOT)
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
    words = ("assert", "raises", "warns")
    silent = []
    for file in tracked():
        if file.name.startswith("test_") and file.suffix == ".py":
            body = ast.parse(file.read_text()).body
            classes = [node for node in body if isinstance(node, ast.ClassDef) and node.name.startswith("Test")]
            for node in [*body, *(method for one in classes for method in one.body)]:
                named = isinstance(node, ast.FunctionDef) and node.name.startswith("test")
                if named and not any(word in ast.unparse(node) for word in words):
                    silent.append(f"{file.name}:{node.lineno}")
    assert not silent


def test_tests_start_and_await_processes_in_the_one_way_that_ends_them() -> None:
    found = []
    for file in tracked():
        if file.suffix == ".py" and (ROOT / "tests") in file.parents:
            for node in ast.walk(ast.parse(file.read_text())):
                own = file.name != "processes.py" and (_imports_subprocess(node) or _polls_in_a_loop(node))
                if own or _waits_for_ever(node):
                    found.append(f"{file.name}:{node.lineno}: use tests/processes.py, or give a timeout")
    assert not found


def _imports_subprocess(node: ast.AST) -> bool:
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    return "subprocess" in names or (isinstance(node, ast.ImportFrom) and node.module == "subprocess")


def _polls_in_a_loop(node: ast.AST) -> bool:
    return isinstance(node, ast.While) and ".poll()" in ast.unparse(node)


def _waits_for_ever(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    name, receiver = node.func.attr, ast.unparse(node.func.value)
    limited = any(keyword.arg == "timeout" for keyword in node.keywords) or (name == "wait" and bool(node.args))
    waits = name in ("wait", "communicate", "check_call", "check_output") or f"{receiver}.{name}" == "subprocess.run"
    return waits and not limited and receiver != "store"  # a checkpoint store waits for its own thread


def test_ranks_wait_for_each_other_where_a_late_one_is_waited_for() -> None:
    impatient = re.compile(r"\bdist\.barrier\(|_object_list\(|_gather_object\(")
    sources = [f for f in tracked() if f.suffix == ".py" and any((folder / "src") in f.parents for folder in PACKAGES)]
    waiting = [f.name for f in sources if impatient.search(f.read_text())]
    assert waiting == ["distributed.py"], "use what is in it: the group's own collectives end in a time-out"


def test_the_packages_raise_one_checkpoint_error() -> None:
    assert sts_methods.CheckpointError is sts_core.CheckpointError
    assert sts_eval.CheckpointError is sts_core.CheckpointError
