"""The scripts in examples/ run as they are, only shorter."""

import re
import sys
from pathlib import Path

import pytest

from tests import processes

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def run(*command: object, cwd: Path) -> str:
    done = processes.run([sys.executable, *command], cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_script_is_tried_here() -> None:
    scripts = {path.name for folder in ("packages/*", "pipelines") for path in ROOT.glob(f"{folder}/examples/*.py")}
    assert scripts
    text = Path(__file__).read_text()
    assert not [name for name in scripts if name not in text]


def shortened(script: str, folder: Path, *changes: tuple[str, str]) -> Path:
    """A copy of a script of sts-core in `folder`, with these changes; what it writes lies beside it."""
    text = (ROOT / "packages/sts-core/examples" / script).read_text()
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    (folder / script).write_text(text)
    return folder / script


def test_mean_teacher_on_digits_learns(tmp_path: Path) -> None:
    printed = run(shortened("digits.py", tmp_path, ("= 40, 400, 128", "= 40, 100, 128")), cwd=tmp_path)
    accuracies = [float(value) for value in re.findall(r"teacher ([\d.]+) %", printed)]
    assert len(accuracies) == 2
    assert accuracies[-1] > 60.0


def test_eight_averages_of_one_lightning_run_are_measured(tmp_path: Path) -> None:
    pytest.importorskip("lightning", reason="Lightning is not installed")
    printed = run(shortened("bank.py", tmp_path, ("EPOCHS = 40", "EPOCHS = 10")), cwd=tmp_path)
    page = tmp_path / "averages/report.html"
    assert f"with plots: {page.as_uri()}" in printed
    lines = (tmp_path / "averages/averages.jsonl").read_text().splitlines()
    assert len(lines) == 1 + 10 * 9  # a heading; after each of ten epochs the student and its eight teachers
    assert page.is_file()


def test_the_teacher_of_two_processes_is_that_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    printed = run(*torchrun, ROOT / "packages/sts-core/examples/fsdp2.py", cwd=tmp_path)
    assert sorted(re.findall(r"keeps (\d+) of 1105 .*? by (\S+) from", printed)) == [
        ("544", "0.0e+00"),
        ("561", "0.0e+00"),
    ]


def test_photographs_become_a_report(photos: None, tmp_path: Path) -> None:
    small = ["--backbone", "test_resnet", "--image-size", "32", "--epochs", "1", "--batch", "5", "--loaders", "0"]
    printed = run(ROOT / "packages/sts-eval/examples/photos.py", "photos", "labelled", *small, cwd=tmp_path)
    assert f"report: {(tmp_path / 'runs/photos/report/report.html').as_uri()}" in printed
    text = (tmp_path / "runs/photos/report/report.md").read_text()
    assert "Against the matched moving average" in text


def test_a_sweep_varies_a_field_of_ones_own(tmp_path: Path) -> None:
    printed = run(ROOT / "pipelines/examples/sweep.py", "--steps", "1", cwd=tmp_path)
    means = re.findall(r"^m0.9-p0.5-method.second(\S+) +[\d.]+ ± [\d.]+ \(2 seeds\)$", printed, re.MULTILINE)
    assert sorted(means) == ["0", "0.5", "1"]
