"""The section on corrupted images."""

import json
import re
from pathlib import Path

import pytest

from sts_core.errors import StateError
from sts_eval.errors import DataError
from sts_eval.report.build import build_report, write_report
from sts_eval.report.html import to_html
from sts_eval.report.markdown import to_markdown
from sts_eval.report.runs import read_runs
from tests.eval.report.conftest import MakeRun, rows_of, table_of


def test_corruptions_are_compared_with_the_moving_average_with_intervals(family: Path) -> None:
    markdown = to_markdown(build_report(read_runs([family])))
    assert "sts minus tma" in markdown
    assert re.search(r"\| gaussian noise \| \+\d\.\d\d \\\[\+?.?\d\.\d\d, \+\d+\.\d\d\\\] \|", markdown)
    assert "95% intervals by a paired bootstrap" in markdown
    assert "about 1.5 points better than TMA" in markdown


def test_the_number_of_cells_stands_beside_a_mean_and_other_cells_are_not_subtracted(family: Path) -> None:
    file = family / "sts" / "results.json"
    results = json.loads(file.read_text())
    entry = results["entries"][-1]
    entry |= {"severities": [3], "cells": {key: row[2:3] for key, row in entry["cells"].items()}, "outcomes": None}
    file.write_text(json.dumps(results))
    report = build_report(read_runs([family]))
    table = table_of(report, "corruptions")
    column = table.header.index("cells")
    assert {row[0]: row[column] for row in rows_of(table)} == {"tma": "75 of 75", "sts": "15 of 75"}
    markdown = to_markdown(report)
    assert "sts minus tma" not in markdown
    assert "Not compared with tma, which saw other images or other cells, or has another probe: sts." in markdown


@pytest.mark.parametrize("change", [{"protocol": {"solver": "sgd"}}, {"source": {"seed": 5}}, {"data": {"root": "/b"}}])
def test_what_another_probe_or_other_pixels_gave_is_not_subtracted(family: Path, change: dict[str, object]) -> None:
    file = family / "sts" / "results.json"
    results = json.loads(file.read_text())
    results["entries"][-1] |= change
    file.write_text(json.dumps(results))
    markdown = to_markdown(build_report(read_runs([family])))
    assert "sts minus tma" not in markdown
    assert "or has another probe: sts." in markdown


def test_a_student_is_neither_called_nor_compared_with_a_teacher_on_corruptions(family: Path) -> None:
    for name, text in (("sts", "only their students were evaluated: sts."), ("tma", "on corrupted images, student")):
        file = family / name / "results.json"
        results = json.loads(file.read_text())
        results["entries"][-1]["network"] = "student"
        file.write_text(json.dumps(results))
        markdown = to_markdown(build_report(read_runs([family])))
        assert text in markdown
        assert ("sts minus tma" in markdown) == (name == "tma")  # both are students then


def test_damaged_outcomes_are_named_and_nothing_is_written(family: Path, tmp_path: Path) -> None:
    file = family / "sts" / "imagenet-c.npz"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(StateError, match=r"imagenet-c.npz is damaged"):
        write_report([family], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_without_outcomes_the_difference_has_no_interval(family: Path) -> None:
    (family / "sts" / "imagenet-c.npz").unlink()
    assert "No intervals" in to_markdown(build_report(read_runs([family])))


def test_outcomes_of_other_images_are_refused(family: Path) -> None:
    results = json.loads((family / "sts" / "results.json").read_text())
    results["entries"][-1]["images"] = "others"
    (family / "sts" / "results.json").write_text(json.dumps(results))
    with pytest.raises(DataError, match="must belong to the same images"):
        build_report(read_runs([family]))


def test_a_benchmark_of_one_severity_is_drawn_without_a_curve_over_severities(family: Path) -> None:
    for name in ("tma", "sts"):
        file = family / name / "results.json"
        results = json.loads(file.read_text())
        entry = results["entries"][-1]
        entry |= {"severities": [3], "cells": {key: row[2:3] for key, row in entry["cells"].items()}, "outcomes": None}
        file.write_text(json.dumps(results))
    html = to_html(build_report(read_runs([family])))
    assert "<h3>By corruption</h3>" in html
    assert 'aria-label="top-1 by severity"' not in html


def test_what_whiskers_are_stands_once_under_the_last_comparison(make_run: MakeRun, tmp_path: Path) -> None:
    for seed in (0, 1):
        make_run(f"tma{seed}", seed=seed, shift=0.0)
        make_run(f"sts{seed}", seed=seed, p=0.7, shift=0.05)
    text = write_report([tmp_path / "runs"], tmp_path / "out")[0].read_text()
    assert text.count("sts1 minus tma1") == 1
    assert text.count("Whiskers: ") == 1
