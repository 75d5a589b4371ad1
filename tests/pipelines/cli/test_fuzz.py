"""Damaged files, flags and YAML: every one ends in an answer or in one sentence, and nothing else is lost.

Each of the first three tests draws a hundred cases; STS_FUZZ_CASES=5000 lets them draw so many.
"""

import itertools
import os
import random
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from sts_pipelines.catalog import CATALOG
from sts_pipelines.cli.main import main
from sts_pipelines.config.kinds import plain_of
from sts_pipelines.config.plain import to_dict
from sts_pipelines.config.sections import paths
from sts_pipelines.config.yaml_text import read_yaml, write_yaml

CASES = int(os.environ.get("STS_FUZZ_CASES", "100"))
pytestmark = pytest.mark.timeout(600 if CASES <= 100 else 0)
DEEP = "[" * 2000
RUN = (
    *("run", "byol-digits-sts", "--steps", "2", "--checkpoint-every-steps", "1", "--log-every-steps", "1"),
    *("--evaluation.after-training", "knn", "--tracking.tensorboard", "false", "--cluster.storage-path"),
)
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "a bit": lambda content: content[:-9] + bytes([content[-9] ^ 4]) + content[-8:] if len(content) > 9 else b"\x01",
    "no text": lambda content: b"\xff\xfe\x00\x9f" + content,
    "no text later": lambda content: content + b"\n\xff\xfe\n",
    "{}": lambda content: b"{}",
    "no object": lambda content: b"[1, 2]\n3\nnull\n" + content,
    "numbers": lambda content: content.replace(b'"', b"7"),
    "deep": lambda content: DEEP.encode(),
}
VALUES = (
    "",
    "x",
    "-1",
    "0",
    "1e400",
    "nan",
    "null",
    "true",
    "1,2",
    "[[",
    "{a: 1}",
    "9" * 400,
    "\0",
    "ä\u2028",
    "..",
    DEEP,
)
NODES: tuple[Any, ...] = (None, -1, 1e308, float("nan"), "", "x", "\0", [], [[]], {}, {"x": 1}, [None], True, 10**30)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two steps."""
    storage = tmp_path_factory.mktemp("runs")
    assert main([*RUN, str(storage)]) == 0
    (folder,) = storage.glob("byol-digits-sts-*")
    return folder


def draw(cases: Sequence[Any]) -> Iterator[Any]:
    """As many of the cases as are asked for, always the same ones."""
    return iter(random.Random(0).sample(cases, min(CASES, len(cases))))


def complaint(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str | None:
    """What is wrong with how a command ended, if anything is."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = main(list(arguments))
    except BaseException as error:  # a traceback for the user
        capsys.readouterr()
        return f"{type(error).__name__}: {str(error)[:200]}"
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("sts: ")]
    return None if code in (0, 1) or (code == 2 and len(said) == 1) else f"code {code}, said {said}"


@pytest.mark.slow
def test_no_damaged_file_of_a_run_folder_is_a_traceback_or_costs_another(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = sorted(path.relative_to(run) for path in run.rglob("*") if path.is_file() and path.suffix != ".lock")
    cases = list(itertools.product(files, DAMAGE, ("doctor", "report", "evaluate", "run")))
    found = {}
    for number, (file, damage, verb) in enumerate(draw(cases)):
        folder = tmp_path / str(number) / run.name
        shutil.copytree(run, folder, ignore=shutil.ignore_patterns("report"))
        kept = {path: path.read_bytes() for path in folder.rglob("*.safetensors") if path != folder / file}
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_bytes(DAMAGE[damage]((run / file).read_bytes()))
        commands = {"report": ["--output", str(folder / "page")], "evaluate": ["--only", "knn"]}
        again = [*RUN, str(folder.parent)]
        wrong = complaint(again if verb == "run" else [verb, str(folder), *commands.get(verb, [])], capsys)
        lost = [path.name for path, content in kept.items() if not path.exists() or path.read_bytes() != content]
        if wrong or lost:
            found[f"{verb} with {file} {damage}"] = wrong or f"lost {lost}"
        shutil.rmtree(folder.parent)
    assert not found, "\n".join(f"{case}: {wrong}" for case, wrong in found.items())


@pytest.mark.slow
def test_no_value_of_any_flag_is_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("byol-digits-sts", "fixmatch-digits-sts", "byol-digits-p-by-m", "quickstart")
    configs = {name: CATALOG[name].build() for name in names}
    flags = [(name, path) for name, config in configs.items() for path in paths(type(config), to_dict(config))]
    cases = [(name, path, value) for (name, path), value in itertools.product(flags, VALUES)]
    found = {}
    for name, path, value in draw(cases):
        wrong = complaint(["show", name, f"--{path.replace('_', '-')}={value}"], capsys)
        if wrong:
            found[f"{name} --{path} {value[:20]!r}"] = wrong
    assert not found, "\n".join(f"{case}: {wrong}" for case, wrong in found.items())


def keys(plain: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in plain.items() if isinstance(plain, dict) else ():
        yield (*path, name)
        yield from keys(value, (*path, name))


@pytest.mark.slow
def test_no_value_of_any_yaml_key_is_a_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, file = {}, tmp_path / "mine.yaml"
    plains = [plain_of(CATALOG[name].build()) for name in ("byol-digits-sts", "fixmatch-digits-sts", "quickstart")]
    cases = [(plain, path, node) for plain in plains for path in keys(plain) for node in NODES]
    for plain, path, node in draw(cases):
        changed = read_yaml(write_yaml(plain))
        section = changed
        for name in path[:-1]:
            section = section[name]
        section[path[-1]] = node
        file.write_text(write_yaml(changed))
        wrong = complaint(["show", str(file)], capsys)
        if wrong:
            found[f"{'.'.join(path)}: {node!r}"] = wrong
    assert not found, "\n".join(f"{case}: {wrong}" for case, wrong in found.items())


@pytest.mark.slow
@pytest.mark.parametrize("text", [DEEP, "{a: " * 2000, "a: &x [*x]", "\0", "a: !!python/object:os.system x", "? [a]"])
def test_no_yaml_text_is_a_traceback(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    assert complaint(["show", str(tmp_path / "mine.yaml")], capsys) is None
