"""What `sts run` says before it begins."""

from pathlib import Path

import pytest

from sts_pipelines.catalog import CATALOG
from sts_pipelines.cli.introduction import introduce
from sts_pipelines.cli.main import main
from sts_pipelines.cli.resolve import resolve


def test_the_quickstart_says_what_will_happen_where_and_for_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    config = resolve("quickstart")
    assert introduce(config, CATALOG["quickstart"]).splitlines() == [
        "quickstart: trains byol on digits for 110 steps, 4 times (none, tma, se, sts)",
        "  then measures linear, knn of teacher, student, untrained",
        "  by 2 Ray workers on CPUs of this machine; took about 2 minutes on 2 CPU cores",
        f"  in {Path.cwd() / config.folder}",
    ]


def test_hours_that_nobody_measured_and_those_of_another_config_are_not_told() -> None:
    name = "byol-imagenet-200ep-sts"
    text = introduce(resolve(name), CATALOG[name])
    assert "by 8 Ray workers on GPUs" in text
    assert "took about" not in text
    assert "  takes ~28 / ~88 h by estimate, on A100 / on RTX 2080 Ti" in text.splitlines()
    assert "takes" not in introduce(resolve(name), None)
    assert "took about" not in introduce(resolve("quickstart", ["--steps", "3"]), None)


def test_a_run_begins_with_these_lines_and_ends_with_a_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = ["--steps", "1", "--cluster.num-workers", "0", "--cluster.storage-path", str(tmp_path)]
    assert main(["run", "byol-digits-sts", *short, "--evaluation.after-training", "knn"]) == 0
    printed = capsys.readouterr()
    first = "byol-digits-sts: trains byol on digits for 1 steps\n  then measures knn of teacher, "
    assert printed.err.startswith(first)
    link = printed.out.splitlines()[-1].removeprefix("report: file://")
    assert Path(link).is_file()
