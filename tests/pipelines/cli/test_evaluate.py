"""What `sts evaluate` measures of runs that are there."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from sts_eval import read_results
from sts_eval.features.extraction import FrozenBackbone
from sts_pipelines.cli.verbs.evaluate import evaluate_folders
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.errors import UsageError
from sts_pipelines.launch import worker
from sts_pipelines.launch.driver import launch
from sts_pipelines.launch.job import Job, run_lock
from tests.pipelines.conftest import run

Tiny = Callable[..., PipelineConfig]


def test_evaluate_adds_what_is_missing_and_refuses_to_change_the_training(tiny: Tiny) -> None:
    pipeline = tiny("byol-digits-tma", steps=2)
    pipeline = replace(pipeline, evaluation=replace(pipeline.evaluation, after_training=("knn",)))
    folder = run(pipeline)
    evaluate_folders([str(folder)], ["--evaluation.after-training", "linear", "--evaluation.networks", "teacher"])
    found = {(e["evaluation"], e["network"]) for e in read_results(folder).entries}
    assert found == {("knn", "teacher"), ("knn", "student"), ("linear", "teacher")}
    asked = ["--evaluation.after-training", "knn,imagenet-c", "--evaluation.imagenet-c-root", "nowhere"]
    with pytest.raises(UsageError, match="imagenet-c needs its images, and nowhere is not a folder"):
        evaluate_folders([str(folder)], asked)  # at once, and not after the hours of other evaluations
    with pytest.raises(UsageError, match="a finished training cannot be changed"):
        evaluate_folders([str(folder)], ["--smoothing.momentum", "0.1"])


def test_two_evaluations_of_one_run_are_kept_apart(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = tiny("byol-digits-tma", steps=1)
    folder = run(replace(pipeline, evaluation=replace(pipeline.evaluation, after_training=())))
    monkeypatch.setattr(worker, "run_lock", lambda folder: run_lock(folder, patience_seconds=0.3))
    with run_lock(folder), pytest.raises(UsageError, match="is being written to by another run: wait for it"):
        evaluate_folders([str(folder)], ["--evaluation.after-training", "knn"])
    assert not (folder / "results.json").exists()


@pytest.mark.parametrize("flag", ["--cluster.num-workers", "--cluster.num_workers"])
def test_an_evaluation_is_done_by_workers_where_they_are_asked_for(
    flag: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run(tiny("byol-digits-tma", steps=1))
    workers: list[int] = []
    monkeypatch.setattr(
        "sts_pipelines.launch.driver.launch", lambda jobs, **_: workers.append(jobs[0].pipeline.cluster.num_workers)
    )
    evaluate_folders([str(folder)], [flag, "2"])
    evaluate_folders([str(folder)], [f"{flag}=1"])
    evaluate_folders([str(folder)], [])
    assert workers == [2, 1, 0]


def test_a_killed_evaluation_resumes_with_the_features_it_had(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = tiny("byol-digits-tma", steps=1)
    pipeline = replace(pipeline, evaluation=replace(pipeline.evaluation, after_training=("knn",)))
    with monkeypatch.context() as killed:
        killed.setattr("sts_pipelines.evaluation.records.knn.nearest_neighbours", raising(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run(pipeline)
    shown = []
    forward = FrozenBackbone.__call__
    monkeypatch.setattr(FrozenBackbone, "__call__", lambda self, x: shown.append(len(x)) or forward(self, x))
    run(pipeline)
    assert {entry["network"] for entry in read_results(pipeline.folder).entries} == {"teacher", "student"}
    assert sum(shown) < 2000  # the student's 1797 digits, and of each split one image for the width
    assert not (pipeline.folder / ".features").exists()


def raising(error: type[BaseException]) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> Any:
        raise error

    return function


def test_student_and_teacher_are_shown_each_corrupted_image_in_one_pass(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sts_pipelines.evaluation import corruptions

    shown: list[tuple[str, ...]] = []
    real = corruptions.evaluate_cell

    def counting(models: dict[str, torch.nn.Module], *rest: object, **options: object) -> object:
        shown.append(tuple(models))
        return real(models, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(corruptions, "evaluate_cell", counting)
    monkeypatch.setattr(corruptions, "cells_of", lambda source: [("contrast", 1), ("brightness", 1)])
    pipeline = tiny("byol-digits-tma", steps=2)
    pipeline = replace(pipeline, evaluation=replace(pipeline.evaluation, after_training=("imagenet-c",)))
    folder = run(pipeline)
    assert [len(models) for models in shown] == [2, 2]
    found = {(e["evaluation"], e["network"]) for e in read_results(folder).entries}
    assert found == {("imagenet-c", "teacher"), ("imagenet-c", "student")}
    assert len(list(folder.glob("imagenet-c-teacher-*.npz"))) == 1


def test_an_evaluation_trains_nothing_even_when_the_checkpoints_are_gone(tiny: Tiny) -> None:
    pipeline = tiny("byol-digits-tma", steps=2)
    folder = run(replace(pipeline, evaluation=replace(pipeline.evaluation, after_training=())))
    config = (folder / "config.yaml").read_text()
    shutil.rmtree(folder / "checkpoints")
    launch([Job(label="x", pipeline=pipeline, folder=folder, train=False)], name="x", folder=folder)
    assert {entry["evaluation"] for entry in read_results(folder).entries} == {"linear", "knn"}
    assert not (folder / "checkpoints").exists()
    assert (folder / "config.yaml").read_text() == config
