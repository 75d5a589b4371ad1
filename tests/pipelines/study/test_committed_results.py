"""What the README quotes was measured by code whose outcome-relevant config is the present one, and says what it is."""

import json
import re
from pathlib import Path

import pytest

from sts_pipelines.study import medium, small
from sts_pipelines.study.outcomes import Outcomes
from sts_pipelines.study.plan import Record, Study
from sts_pipelines.study.records import read_records
from sts_pipelines.study.verdicts import findings

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "pipelines" / "results"
QUOTED = (ROOT / "README.md").read_text().partition("<!-- results -->")[2].partition("<!-- /results -->")[0]


def study_of(name: str, seeds: tuple[int, ...] | None = None) -> Study:
    """The present study; the images of `medium` are those that its config.json names."""
    if name == "small":
        return small.small_study(seeds or small.SEEDS)
    images = medium.Images(path=Path(), digest=json.loads((RESULTS / name / "config.json").read_text())["images"])
    return medium.medium_study(images, seeds or medium.SEEDS)


def outdated(study: Study, records: dict[str, Record]) -> list[str]:
    """Records that no run of the present study would make."""
    present = {run.key for run in study.runs}
    return [
        f"{r.experiment} {r.teacher} seed {r.seed} at {r.revision}" for r in records.values() if r.key not in present
    ]


@pytest.mark.parametrize("name", ["small", "medium"])
def test_committed_records_are_those_of_the_present_config(name: str) -> None:
    records = read_records(RESULTS / name / "results.jsonl")
    if not records:
        pytest.skip(f"the study {name} has no records yet")
    assert not outdated(study_of(name), records), f"measure again by `sts study {name}`, or take back what changed"
    assert all(record.revision for record in records.values())


@pytest.mark.parametrize("name", ["small", "medium"])
def test_a_study_shares_no_seed_with_its_pilot(name: str) -> None:
    seeds = {record.seed for record in read_records(RESULTS / name / "pilot.jsonl").values()}
    assert not seeds & set({"small": small.SEEDS, "medium": medium.SEEDS}[name])


def test_a_changed_config_outdates_its_records() -> None:
    study, other = small.small_study((1,)), small.small_study((2,))
    run = study.runs[0]
    record = Record(key=run.key, experiment="e", teacher="t", seed=1, smoothing={}, values={}, revision="abc")
    assert not outdated(study, {run.key: record})
    assert outdated(other, {run.key: record}) == ["e t seed 1 at abc"]


def test_every_interval_that_the_readme_quotes_is_in_the_reports() -> None:
    reports = "".join(path.read_text() for path in RESULTS.glob("*/README.md"))
    quoted = re.findall(r"[+-]\d+\.\d+ \[[^\]]*\]", QUOTED)
    assert [interval for interval in quoted if interval not in reports] == []


def test_the_readme_says_how_many_of_the_planned_seeds_are_measured() -> None:
    study = study_of("small")
    found = findings(study, Outcomes(study, read_records(RESULTS / "small" / "results.jsonl")))
    fewest = min(found, key=lambda finding: finding.effect.count / finding.planned, default=None)
    expected = f"{fewest.effect.count} of {fewest.planned} planned seeds" if fewest else "0 of 150 planned seeds"
    assert expected in QUOTED
