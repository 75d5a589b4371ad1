"""What a Tune trial does about its jobs, without Ray: which of them count, which are marked, and what is reported."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sts_methods.runs.metrics_log import MetricsLog
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.config.sweep import GridConfig, SweepConfig
from sts_pipelines.errors import RunError
from sts_pipelines.launch import driver
from sts_pipelines.launch.job import Job
from sts_pipelines.sweep import run
from sts_pipelines.sweep.outcomes import note_error
from sts_pipelines.sweep.run import job_of, sweep_folder, trainable_of
from sts_pipelines.sweep.trials import trials_of

Tiny = Callable[..., PipelineConfig]
Reports = list[dict[str, float]]


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Reports:
    """What trials tell Tune."""
    from ray import tune

    told: Reports = []
    monkeypatch.setattr(tune, "report", told.append)
    monkeypatch.setattr(driver, "is_complete", lambda job: (job.folder / "metrics.jsonl").is_file())
    return told


def run_trial(tiny: Tiny, *preserve_probabilities: float) -> dict[str, Job]:
    """A trial of several cells; its jobs by label."""
    pipeline = tiny("byol-digits-sts", num_workers=1)
    pipeline = replace(pipeline, evaluation=replace(pipeline.evaluation, after_training=("knn",)))
    recipe = SweepConfig(pipeline=pipeline, sweep=GridConfig(cells=tuple((0.9, p) for p in preserve_probabilities)))
    jobs = [job_of(trial, recipe.pipeline, sweep_folder(recipe)) for trial in trials_of(recipe)]
    trainable_of(recipe)({"jobs": [job.to_plain() for job in jobs]})
    return {job.label: job for job in jobs}


def log_step(job: Job, p: float) -> None:
    line = {"step": 1, "momentum": 0.9, "preserve_probability": p, "images_per_second": 1.0}
    MetricsLog(job.folder / "metrics.jsonl").append(line)


def test_a_trial_reports_what_was_applied(tiny: Tiny, reports: Reports, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(jobs: Sequence[Job], **options: Any) -> None:
        for job in jobs:
            log_step(job, job.pipeline.training.smoothing.preserve_probability)

    monkeypatch.setattr(run, "train_on_ray", train)
    run_trial(tiny, 0.0, 0.5)
    assert reports == [{"knn/teacher/top1": 0.0, "step": 1, "momentum": 0.9, "preserve_probability": 0.5}]


def test_a_trial_whose_smoother_applied_other_values_than_sampled_fails(
    tiny: Tiny, reports: Reports, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(run, "train_on_ray", lambda jobs, **options: [log_step(job, 0.0) for job in jobs])
    run_trial(tiny, 0.0, 0.5)  # without raising: Tune starts anew what raises
    assert reports == []
    assert [path.parent.name for path in tmp_path.glob("*/*/finished.json")] == ["m0.9-p0"]
    (note,) = tmp_path.glob("*/*/error.json")
    assert note.parent.name == "m0.9-p0.5"
    assert "applied m=0.9 and p=0.0 at step 1: its result is void" in json.loads(note.read_text())["error"]


def test_a_cell_that_fails_leaves_the_others_of_its_trial(
    tiny: Tiny, reports: Reports, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    groups: list[list[str]] = []

    def train(jobs: Sequence[Job], **options: Any) -> None:
        groups.append([job.label for job in jobs])
        for job in jobs:
            p = job.pipeline.training.smoothing.preserve_probability
            if p == 0.5:
                raise RunError("the loss is not finite")
            log_step(job, p)

    monkeypatch.setattr(run, "train_on_ray", train)
    run_trial(tiny, 0.0, 0.5, 0.7)
    assert groups == [["m0.9-p0", "m0.9-p0.5", "m0.9-p0.7"], ["m0.9-p0.5"], ["m0.9-p0.7"]]
    assert sorted(path.parent.name for path in tmp_path.glob("*/*/finished.json")) == ["m0.9-p0", "m0.9-p0.7"]
    (note,) = tmp_path.glob("*/*/error.json")
    assert json.loads(note.read_text()) == {"error": "the loss is not finite"}


def test_a_trial_that_fails_in_an_unforeseen_way_marks_all_its_cells(
    tiny: Tiny, reports: Reports, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    def train(jobs: Sequence[Job], **options: Any) -> None:
        raise KeyError("worker")

    monkeypatch.setattr(run, "train_on_ray", train)
    run_trial(tiny, 0.0, 0.5)
    notes = {path.parent.name: json.loads(path.read_text()) for path in tmp_path.glob("*/*/error.json")}
    assert notes == {name: {"error": "KeyError: 'worker'"} for name in ("m0.9-p0", "m0.9-p0.5")}


def told_of(folder: Path, outcome: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What is said of a trial of which one job has finished and another has not."""
    from sts_pipelines.sweep.tune import Narrator

    trial = SimpleNamespace(config={"jobs": [{"label": name, "folder": str(folder / name)} for name in ("a", "b")]})
    (folder / "a").mkdir()
    (folder / "a" / "finished.json").touch()
    getattr(Narrator(3, storage_path="runs"), outcome)(iteration=1, trials=[trial], trial=trial)
    return capsys.readouterr().err


def test_a_trial_that_was_lost_for_good_fails_under_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told_of(tmp_path, "on_trial_error", capsys) == "b: FAILED\n"
    note = json.loads((tmp_path / "b" / "error.json").read_text())
    assert note == {"error": "the trial was lost more often than max_failures=3 allows"}
    assert not (tmp_path / "a" / "error.json").exists()


def test_a_trial_that_was_lost_once_is_told_to_start_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = told_of(tmp_path, "on_trial_recover", capsys)
    assert told == "a, b: the trial was lost and starts again from the newest checkpoint\n"
    assert not (tmp_path / "b").exists()


def test_a_cell_with_an_error_is_not_taken_for_one_that_the_search_gave_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note_error(tmp_path / "b", "the loss is not finite")
    assert told_of(tmp_path, "on_trial_complete", capsys) == "b: FAILED\n"
    assert not (tmp_path / "b" / "stopped.json").exists()
