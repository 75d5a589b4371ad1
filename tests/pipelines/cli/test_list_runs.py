"""sts list --runs: what is on disk, in a line each, whatever state it is in."""

import json
import os
import sys
from pathlib import Path

import pytest

from sts_pipelines.cli.main import main
from sts_pipelines.cli.runs_table import row_of
from tests.pipelines.cli.test_main import run_isolated


def write(folder: Path, *lines: object, **files: object) -> Path:
    folder.mkdir(parents=True)
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (folder / "metrics.jsonl").write_text("".join(f"{text}\n" for text in texts))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def entry(evaluation: str, value: float, **changes: object) -> dict[str, object]:
    known = {"evaluation": evaluation, "network": "teacher", "metric": "top1", "which": "last", "value": value}
    return known | changes


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A run under way, a finished one inside a comparison, and one with damaged files."""
    under_way = [{"step": 5, "loss": 3.0, "knn/teacher/top1": 80.0}, {"step": 9, "loss": 2.5}]
    write(tmp_path / "byol-1", *under_way, plan={"total_steps": 1000})
    measured = [entry("knn", 91.26, recency=1), entry("linear", 85.0, recency=2), entry("linear", 70.0, recency=1)]
    measured += [entry("knn", 99.0, network="student"), entry("knn", 98.0, metric="top5", recency=9)]
    curve = {"step": 20, "loss": 1.0, "knn/teacher/top1": 90.04, "knn/student/top1": 10.0, "linear/teacher/top1": 88}
    write(tmp_path / "quickstart-2" / "sts", curve, teacher={"step": 20}, results={"entries": measured})
    write(tmp_path / "damaged", "{", '{"step": "x", "loss": []}', teacher="{", results="[" * 10_000, plan="[1]")
    return tmp_path


def test_progress_curves_and_results_stand_in_a_line(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--runs", str(runs), "--json"]) == 0
    rows = {row["run"]: row for row in json.loads(capsys.readouterr().out)}
    assert list(rows) == ["byol-1", "damaged", "quickstart-2/sts"]
    assert (rows["byol-1"]["progress"], rows["byol-1"]["loss"]) == ("9 of 1,000", "2.5")
    assert (rows["byol-1"]["curve"], rows["byol-1"]["results"]) == ("knn 80.0", "-")
    done = rows["quickstart-2/sts"]
    assert done["progress"] == "20 steps, done"
    assert (done["curve"], done["results"]) == ("knn 90.0, linear 88.0", "knn 91.3, linear 85.0")
    assert rows["damaged"] | {"last": ""} == dict.fromkeys(rows["damaged"], "-") | {
        "run": "damaged", "progress": "?", "last": "", "results": "damaged: evaluate the run again",
    }  # fmt: skip


def test_in_a_terminal_of_80_columns_every_run_can_be_told_from_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"byol-digits-sts-020042f6/m0.9-p0.7-channel-seed{seed}" for seed in range(3)]
    for name in names:
        write(
            tmp_path / name,
            {"step": 110, "loss": 1.73456},
            results={"entries": [entry("linear", 85.0), entry("knn", 79.1)]},
        )
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["list", "--runs", str(tmp_path)]) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    ends = [line.split()[0].removeprefix("..") for line in lines]
    assert all(name.endswith(end) and len(end) > 15 for name, end in zip(names, ends, strict=True))
    assert all("knn 79.1, linear 85.0" in line and len(line) <= 80 for line in lines)
    assert "IN TRAINING" not in heading  # of which no run has a number


def test_the_age_of_the_last_line_tells_a_run_that_stands_still(runs: Path) -> None:
    file = runs / "byol-1" / "metrics.jsonl"
    os.utime(file, (1000, 1000))
    ages = {1030: "30 s", 1600: "10 min", 1000 + 7200: "2 h", 1000 + 3 * 86_400: "3 d"}
    assert {now: row_of(runs / "byol-1", runs, now=now)["last"] for now in ages} == {
        k: f"{v} ago" for k, v in ages.items()
    }


def test_names_are_filtered_and_nothing_heavy_is_imported(runs: Path) -> None:
    finished = run_isolated("list", "quick", "--runs", str(runs))
    assert finished.returncode == 0
    assert "HEAVY []" in finished.stdout
    assert "quickstart-2/sts" in finished.stdout
    assert "byol-1" not in finished.stdout


def test_a_folder_without_runs_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder, message in ((tmp_path, "no run in "), (tmp_path / "nowhere", "is no folder that holds runs")):
        assert main(["list", "--runs", str(folder)]) == 2
        (said,) = capsys.readouterr().err.splitlines()
        assert message in said
