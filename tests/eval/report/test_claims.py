"""What a report may not suggest: each test is a number that once looked better than it was."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from sts_eval import add_entries, fast_protocol
from sts_eval.report.build import build_report
from sts_eval.report.markdown import to_markdown
from sts_eval.report.runs import read_runs

MakeRun = Callable[..., Path]
LINEAR: dict[str, Any] = {"evaluation": "linear", "network": "teacher", "metric": "top1", "which": "last"}


def markdown_of(*folders: Path) -> str:
    return to_markdown(build_report(read_runs(folders)))


@pytest.mark.parametrize(
    ("selected_on", "said"),
    [
        ("test", "chosen on the test labels (optimistic)"),
        ("held-out", "chosen on 10 % of the training images"),
        ("single", None),
    ],
)
def test_a_report_says_how_the_penalty_was_chosen(make_run: MakeRun, selected_on: str, said: str | None) -> None:
    folder = make_run("run", top1=None, metrics=False)
    add_entries(folder, [LINEAR | {"value": 80.0, "protocol": asdict(fast_protocol()), "selected_on": selected_on}])
    text = markdown_of(folder)
    assert ("chosen on" in text) == (said is not None)
    if said is not None:
        assert f"L-BFGS, {said}" in text
