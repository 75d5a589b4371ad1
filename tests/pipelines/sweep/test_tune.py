"""What a Tune trial does about its jobs, without Ray: which of them count, which are marked, and what is reported."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from sts_methods.runs.metrics_log import MetricsLog
from sts_pipelines.config.pipeline import GridConfig, PipelineConfig, SweepConfig
from sts_pipelines.errors import RunError
from sts_pipelines.launch import driver
from sts_pipelines.launch.job import Job
from sts_pipelines.sweep import run
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
    monkeypatch.setattr(driver, "_is_complete", lambda job: (job.folder / "metrics.jsonl").is_file())
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
    with pytest.raises(RunError, match=r"m0.9-p0.5 failed: .* applied m=0.9 and p=0.0 at step 1: its result is void"):
        run_trial(tiny, 0.0, 0.5)
    assert reports == []
    assert [path.parent.name for path in tmp_path.glob("*/*/finished.json")] == ["m0.9-p0"]
    assert [path.parent.name for path in tmp_path.glob("*/*/error.json")] == ["m0.9-p0.5"]


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
    with pytest.raises(RunError, match=r"^m0.9-p0.5 failed: the loss is not finite$"):
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
    with pytest.raises(RunError, match="KeyError: 'worker'"):
        run_trial(tiny, 0.0, 0.5)
    assert sorted(path.parent.name for path in tmp_path.glob("*/*/error.json")) == ["m0.9-p0", "m0.9-p0.5"]
