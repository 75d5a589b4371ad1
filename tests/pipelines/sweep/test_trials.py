"""Which teachers a sweep visits, and the check that each of them was trained with the values it was sampled with."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sts_core import cosine_momentum
from sts_core.errors import ConfigError
from sts_eval import CheckpointAccuracy, NeighboursConfig, few_labels
from sts_eval.probes.neighbours import NeighboursResult
from sts_pipelines.catalog import CATALOG
from sts_pipelines.cli.resolve import resolve
from sts_pipelines.config.cluster import ClusterConfig
from sts_pipelines.config.evaluation import measurable
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.config.sweep import GridConfig, SweepConfig
from sts_pipelines.errors import TrialError
from sts_pipelines.evaluation.record import _RECORDS
from sts_pipelines.launch.cluster import TRIAL_CPUS
from sts_pipelines.launch.job import Job
from sts_pipelines.sweep.outcomes import (
    check_applied,
    forget_errors,
    is_finished,
    mark_stopped,
    note_error,
    outcomes,
    write_outcomes,
)
from sts_pipelines.sweep.run import job_of, num_trials_at_a_time, sweep_folder
from sts_pipelines.sweep.trials import trials_of

Tiny = Callable[..., PipelineConfig]


def sweep(name: str = "byol-digits-p-by-m", **changes: object) -> SweepConfig:
    recipe = CATALOG[name].build()
    assert isinstance(recipe, SweepConfig)
    return replace(recipe, sweep=replace(recipe.sweep, **changes))  # type: ignore[arg-type]


def test_a_grid_has_one_cell_for_each_pair() -> None:
    trials = trials_of(sweep())
    assert len(trials) == 4 * 8
    assert len({trial.name for trial in trials}) == 32
    assert {trial.smoothing.buffers for trial in trials} == {"keep"}


def test_controls_are_moving_averages_of_equal_expected_pull_and_shared_by_equal_ones() -> None:
    recipe = sweep(momenta=(0.0, 0.9), preserve_probabilities=(0.0, 0.5, 0.9), with_control=True)
    trials = trials_of(recipe)
    controls = {trial.name: trial.smoothing.momentum for trial in trials if trial.control}
    # (0, .5) and (.9, .5), (.9, .9) need controls of their own; (0, .9) has TMA(.9), which is in the grid.
    assert controls == {"m0.5-p0": 0.5, "m0.95-p0": 0.95, "m0.99-p0": 0.99}


def test_cells_that_differ_late_have_names_of_their_own() -> None:
    recipe = sweep(momenta=(0.9999,), preserve_probabilities=(0.999, 0.9999), with_control=True)
    assert [trial.name for trial in trials_of(recipe)] == [
        "m0.9999-p0.999", "m0.9999-p0.9999", "m0.9999999-p0", "m0.99999999-p0",
    ]  # fmt: skip


def test_granularity_multiplies_only_cells_with_a_spatial_part() -> None:
    trials = trials_of(sweep("byol-digits-granularity"))
    assert [trial.name for trial in trials] == [
        "m0.9-p0", "m0-p0.9", "m0.9-p0.7", "m0-p0.9-channel", "m0.9-p0.7-channel", "m0-p0.9-neuron", "m0.9-p0.7-neuron",
    ]  # fmt: skip


@pytest.mark.parametrize("coordinates", ["m-p", "m_eff-p"])
def test_a_search_draws_the_same_valid_cells_every_time(coordinates: str) -> None:
    recipe = sweep(search="asha", coordinates=coordinates, num_samples=50, metric="knn/teacher/top1")
    trials = trials_of(recipe)
    assert trials == trials_of(recipe)
    assert len(trials) > 45
    assert all(0 <= trial.smoothing.momentum < 1 and 0 <= trial.smoothing.preserve_probability < 1 for trial in trials)
    if coordinates == "m_eff-p":
        assert all(0.45 < trial.smoothing.effective_momentum < 0.9995 for trial in trials)


def test_a_larger_grid_lives_in_the_same_folder_and_another_training_does_not() -> None:
    small, large = sweep(momenta=(0.9,)), sweep()
    assert sweep_folder(small) == sweep_folder(large)
    training = replace(large.pipeline.training, seed=1)
    assert sweep_folder(replace(large, pipeline=replace(large.pipeline, training=training))) != sweep_folder(large)


@pytest.mark.parametrize(
    ("resources", "trial_cpus", "trials"),
    [
        ({"CPU": 16.0, "GPU": 8.0}, 0.0, 4),  # four CPUs a trial are scarce
        ({"CPU": 64.0, "GPU": 8.0}, 0.0, 4),  # two GPUs a trial are
        ({"CPU": 16.0, "GPU": 8.0}, TRIAL_CPUS, 3),  # the drivers of four trials need a place too
        ({"CPU": 64.0}, 0.0, 1),
    ],
)
def test_as_many_trials_run_at_a_time_as_there_is_room_for(
    resources: dict[str, float], trial_cpus: float, trials: int
) -> None:
    cluster = ClusterConfig(num_workers=2, cpus_per_worker=2.0)
    assert num_trials_at_a_time(resources, cluster, trial_cpus=trial_cpus) == trials


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"metric": "accuracy"}, "must be evaluation/network/number"),
        ({"metric": "voc/teacher/AP"}, "add voc to evaluation.after_training"),
        ({"search": "asha"}, "ASHA ranks trials by knn"),
        ({"search": "asha", "metric": "knn/teacher/top5"}, "ASHA ranks trials by knn/.../top1"),
        ({"metric": "knn/teacher/tpo1"}, "knn measures top1, top5, got tpo1"),
        ({"metric": "voc/teacher/top1"}, "voc measures AP, AP50, AP75"),
        ({"one_student": True, "metric": "linear/student/top1"}, "one student for all cells"),
    ],
)
def test_a_metric_that_no_trial_will_have_is_refused_before_the_first(changes: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        sweep(**changes)


def test_every_number_that_a_sweep_may_rank_by_is_one_that_an_evaluation_reports() -> None:
    numbers = {name: {metric.name for metric in one.metrics} for name, one in measurable().items()}
    assert set(numbers) == set(_RECORDS)
    neighbours = NeighboursResult({(20, 0.07): {1: 50.0, 5: 90.0}}, NeighboursConfig(), 10, 10)
    assert {entry["metric"] for entry in neighbours.entries("teacher")} == numbers["knn"]
    (result,) = few_labels([CheckpointAccuracy(1, "teacher", 50.0)])
    assert {entry["metric"] for entry in result.entries()} == numbers["few-labels"]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"momenta": ()}, "momenta must not be empty"),
        ({"preserve_probabilities": ()}, "preserve_probabilities must not be empty"),
        ({"granularities": ()}, "granularities must not be empty"),
        ({"cells": ((1.5, 0.5),)}, r"cells must be in \[0, 1\], got 1.5"),
        ({"cells_per_trial": 0}, "cells_per_trial must be at least 1, got 0"),
        ({"max_concurrent": 0}, "max_concurrent must be at least 1, got 0"),
    ],
)
def test_a_grid_that_cannot_be_visited_is_refused(changes: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        sweep(**changes)


def test_cells_may_be_given_as_a_flag() -> None:
    recipe = resolve("byol-digits-p-by-m", ["--sweep.cells", "[[0.9,.5],[0, 0.7]]", "--sweep.momenta", "[]"])
    assert isinstance(recipe, SweepConfig)
    assert [trial.name for trial in trials_of(recipe)] == ["m0.9-p0.5", "m0-p0.7"]


def write_metrics(job: Job, applied: list[tuple[float, float]]) -> None:
    job.folder.mkdir(parents=True)
    lines = [
        {"step": step, "momentum": m, "preserve_probability": p, "images_per_second": 1.0}
        for step, (m, p) in enumerate(applied, start=1)
    ]
    (job.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def job(tiny: Tiny, tmp_path: Path, schedule: str = "constant") -> Job:
    pipeline = tiny("byol-digits-sts", momentum_schedule=schedule)
    recipe = SweepConfig(pipeline=pipeline, sweep=GridConfig(cells=((0.9, 0.5),)))
    return job_of(trials_of(recipe)[0], pipeline, tmp_path)


def unevaluated(trial: Job) -> PipelineConfig:
    return replace(trial.pipeline, evaluation=replace(trial.pipeline.evaluation, after_training=()))


def test_a_trial_that_applied_what_was_sampled_is_finished(tiny: Tiny, tmp_path: Path) -> None:
    trial = job(tiny, tmp_path)
    write_metrics(trial, [(0.9, 0.5)] * 3)
    assert not is_finished(trial.folder, unevaluated(trial))
    assert check_applied(trial) == {"step": 3, "momentum": 0.9, "preserve_probability": 0.5}
    assert is_finished(trial.folder, unevaluated(trial))
    assert not is_finished(trial.folder, trial.pipeline)  # what is asked for now has not been measured


def test_a_scheduled_momentum_is_compared_step_by_step(tiny: Tiny, tmp_path: Path) -> None:
    trial = job(tiny, tmp_path, "cosine")
    write_metrics(trial, [(cosine_momentum(step, total_steps=4, start=0.9), 0.5) for step in range(4)])
    assert check_applied(trial)["momentum"] == cosine_momentum(3, total_steps=4, start=0.9)


def test_the_momentum_of_a_trial_that_stops_early_is_scheduled_over_the_whole_length(
    tiny: Tiny, tmp_path: Path
) -> None:
    trial = job(tiny, tmp_path, "cosine")
    training = replace(trial.pipeline.training, steps=None, epochs=10, stop_after_epochs=2)
    trial = replace(trial, pipeline=replace(trial.pipeline, training=training))
    m = [cosine_momentum(step, total_steps=20, start=0.9) for step in range(4)]
    lines = [{"step": s + 1, "epoch": (s + 1) / 2, "momentum": m[s], "preserve_probability": 0.5} for s in range(4)]
    trial.folder.mkdir(parents=True)
    (trial.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert check_applied(trial) == {"step": 4, "momentum": m[3], "preserve_probability": 0.5}


@pytest.mark.parametrize("wrong", [False, True])
def test_an_update_that_was_left_out_does_not_void_a_trial(tiny: Tiny, tmp_path: Path, wrong: bool) -> None:
    trial = job(tiny, tmp_path, "cosine")
    m = [cosine_momentum(step, total_steps=6, start=0.9) for step in range(6)]
    updates = [(2, 2, m[1]), (4, 2, m[1]), (6, 3, m[4])]  # of steps 3 to 6 only the fifth updated the teacher
    if wrong:
        updates[-1] = (6, 3, m[1])
    lines = [{"step": s, "num_updates": u, "momentum": v, "preserve_probability": 0.5} for s, u, v in updates]
    trial.folder.mkdir(parents=True)
    (trial.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if wrong:
        with pytest.raises(TrialError, match="its result is void"):
            check_applied(trial)
    else:
        assert check_applied(trial) == {"step": 6, "momentum": m[4], "preserve_probability": 0.5}


@pytest.mark.parametrize("applied", [(0.9, 0.7), (0.8, 0.5), (0.0, 0.0)])
def test_a_trial_that_applied_other_values_fails(tiny: Tiny, tmp_path: Path, applied: tuple[float, float]) -> None:
    trial = job(tiny, tmp_path)
    write_metrics(trial, [(0.9, 0.5), applied])
    with pytest.raises(TrialError, match="its result is void, remove") as caught:
        check_applied(trial)
    assert not is_finished(trial.folder, unevaluated(trial))
    note_error(trial.folder, str(caught.value))
    recipe = SweepConfig(pipeline=trial.pipeline, sweep=GridConfig(cells=((0.9, 0.5),)))
    (outcome,) = outcomes(tmp_path, trials_of(recipe), metric="knn/teacher/top1")
    assert outcome.error is not None
    assert "was sampled with m=0.9 and p=0.5" in outcome.error


def test_a_trial_without_a_record_of_p_and_m_fails(tiny: Tiny, tmp_path: Path) -> None:
    trial = job(tiny, tmp_path)
    trial.folder.mkdir(parents=True)
    (trial.folder / "metrics.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(TrialError, match="got none"):
        check_applied(trial)


def test_a_trial_that_a_search_gave_up_is_taken_up_again_only_by_a_grid(tmp_path: Path, tiny: Tiny) -> None:
    trial = job(tiny, tmp_path)
    trial.folder.mkdir(parents=True)
    mark_stopped(trial.folder, 40)
    assert is_finished(trial.folder, trial.pipeline, searching=True)
    assert not is_finished(trial.folder, trial.pipeline)
    forget_errors([trial.folder])
    assert not is_finished(trial.folder, trial.pipeline, searching=True)


def test_the_table_and_the_csv_name_every_cell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = sweep(momenta=(0.0, 0.9), preserve_probabilities=(0.0, 0.5), with_control=True)
    found = outcomes(tmp_path, trials_of(recipe), metric="knn/teacher/top1")
    write_outcomes(found, tmp_path, metric="knn/teacher/top1")
    lines = (tmp_path / "sweep.csv").read_text().splitlines()
    assert lines[0] == "trial,m,p,granularity,m_eff,control,knn/teacher/top1,images_per_second,note"
    assert len(lines) == 1 + len(found)
    assert "m0.95-p0,0.95,0,layer,0.95,yes,,,no results" in lines
    assert "m0.9-p0.5" in capsys.readouterr().out
