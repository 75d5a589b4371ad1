"""What `sts new` writes runs as it stands."""

import sys
from pathlib import Path

import pytest

from sts_pipelines.cli.main import main
from tests import processes


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["method", "pipeline"])
def test_a_skeleton_passes_its_own_test_and_runs(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", kind, "my-first"]) == 0
    name = "my-first-digits" if kind == "method" else "my-first"
    assert f"run it:  sts run {name} --import my_first\n" in capsys.readouterr().out
    texts = [path.read_text() for path in (tmp_path / "my_first.py", tmp_path / "test_my_first.py")]
    assert not any(word in text for text in texts for word in ("NAME", "Name_", "_name_"))
    tested = processes.run([sys.executable, "-m", "pytest", "-q", "test_my_first.py"], cwd=tmp_path)
    assert tested.returncode == 0, tested.stdout
    command = ["run", name, "--import", "my_first", "--steps", "1", "--evaluation.after-training", ""]
    ran = processes.run([sys.executable, "-m", "sts_pipelines", *command], cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert [run.name.rpartition("-")[0] for run in (tmp_path / "runs").iterdir()] == [name]


def test_nothing_is_replaced_and_a_bad_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test_mine.py").write_text("kept")
    for arguments, message in {
        ("method", "mine"): "test_mine.py is there already: move it, or choose another name",
        ("pipeline", "quickstart"): "quickstart is a pipeline of sts already: choose another name",
        ("method", "mean-teacher"): "mean_teacher is a method of sts already: choose another name",
        ("method", "torch"): "torch means something else to Python already: choose another name",
        ("pipeline", "class"): "class means something else to Python already: choose another name",
        ("pipeline", "1st"): "a name has small letters, digits and, between them, '-', got '1st'",
        ("method", "../x"): "a name has small letters, digits and, between them, '-', got '../x'",
    }.items():
        assert main(["new", *arguments]) == 2
        assert capsys.readouterr().err == f"sts: {message}\n"
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("test_mine.py", "kept")]
