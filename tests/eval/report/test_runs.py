"""Which run folders a report is about, and what damage to them it names."""

import json
from pathlib import Path

import pytest

from sts_core.errors import StateError
from sts_eval.report.build import build_report, write_report
from sts_eval.report.runs import read_runs
from tests.eval.report.conftest import MakeRun, anchors, rows_of, table_of


def test_a_run_without_a_training_json_is_described_by_the_one_who_knows(make_run: MakeRun) -> None:
    folder = make_run("run", p=0.7)
    told = json.loads((folder / "training.json").read_text())
    (folder / "training.json").unlink()
    assert read_runs([folder])[0].smoothing is None
    report = build_report(read_runs([folder], lambda place: told if place == folder else {}))
    assert rows_of(table_of(report, "runs"))[0][2:6] == ["STS m 0.99, p 0.7 (LW)", "0.997", "byol", "200 epochs"]
    assert "paper" in anchors(report)


def test_runs_of_one_name_are_told_apart_by_their_folders(make_run: MakeRun) -> None:
    folders = [make_run("a"), make_run("b")]
    for folder in folders:
        results = json.loads((folder / "results.json").read_text())
        (folder / "results.json").write_text(json.dumps(results | {"run": "same"}))
    assert [run.name for run in read_runs(folders)] == ["a", "b"]
    assert len(read_runs([folders[0], folders[0]])) == 1


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("training.json", "{", r"training.json must be JSON, but it is not"),
        ("training.json", "[1]", r"training.json must hold named values, but it holds list"),
        ("metrics.jsonl", '{"step": 1}\n{"st\n{"step": 3}\n', r"line 2 of .*metrics.jsonl is not: delete that line"),
        ("metrics.jsonl", '[1]\n{"step": 3}\n', r"line 1 of .*metrics.jsonl is not: delete that line"),
        ("results.json", "{}", "must have the format"),
        ("results.json", '{"format": "sts-results"}', "run in .*results.json must be a str"),
    ],
)
def test_a_damaged_file_is_named_and_nothing_is_written(
    make_run: MakeRun, tmp_path: Path, file: str, content: str, message: str
) -> None:
    folder = make_run("run")
    (folder / file).write_text(content)
    with pytest.raises(StateError, match=message):
        write_report([folder], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_last_line_cut_short_by_a_kill_is_left_out(make_run: MakeRun) -> None:
    folder = make_run("run")
    whole = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(whole + '{"step": 301, "lo')
    assert len(read_runs([folder])[0].metrics) == len(whole.splitlines())


def test_the_folder_of_a_comparison_stands_for_its_runs_although_it_has_a_config(make_run: MakeRun) -> None:
    folder = make_run("one")
    make_run("two")
    (folder.parent / "config.yaml").write_text("kind: comparison\n")
    assert {run.name for run in read_runs([folder.parent])} == {"one", "two"}


def test_a_folder_without_runs_and_a_missing_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="has none of them"):
        read_runs([tmp_path])
    with pytest.raises(StateError, match="a run must be a folder"):
        read_runs([tmp_path / "nothing"])
    with pytest.raises(StateError, match="at least one run"):
        read_runs([])


def test_the_seeds_of_a_setting_stand_side_by_side_in_their_order(make_run: MakeRun) -> None:
    names = {"tma-9f": (0.0, 1), "sts-0c": (0.7, 0), "tma-1a": (0.0, 0)}
    folders = [make_run(name, m=0.99, p=p, seed=seed, metrics=False) for name, (p, seed) in names.items()]
    table = table_of(build_report(read_runs(folders)), "runs")
    assert [row[0] for row in rows_of(table)] == ["tma-1a", "tma-9f", "sts-0c"]
