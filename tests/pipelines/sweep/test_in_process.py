"""Sweeps without Ray: resumed, extended, with failing trials, and a bank of teachers that equals separate runs."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sts_core import SmoothingConfig, bank
from sts_methods.runs.checkpoint import read_checkpoint
from sts_methods.runs.metrics_log import MetricsLog
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.config.run_folder import read_run
from sts_pipelines.config.sweep import GridConfig, SweepConfig
from sts_pipelines.errors import RunError, UsageError
from sts_pipelines.launch.driver import launch
from sts_pipelines.launch.job import Job
from sts_pipelines.sweep.run import job_of, run_sweep, sweep_folder
from sts_pipelines.sweep.trials import trials_of

Tiny = Callable[..., PipelineConfig]


def knn_sweep(tiny: Tiny, **grid: object) -> SweepConfig:
    pipeline = tiny("byol-digits-sts", steps=2)
    pipeline = replace(pipeline, evaluation=replace(pipeline.evaluation, after_training=("knn",)))
    return SweepConfig(pipeline=pipeline, sweep=GridConfig(**grid))  # type: ignore[arg-type]


def test_a_sweep_writes_table_csv_and_report_and_the_next_one_only_runs_what_is_missing(
    tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = knn_sweep(tiny, momenta=(0.9,), preserve_probabilities=(0.0, 0.5))
    found = run_sweep(recipe)
    folder = sweep_folder(recipe)
    assert [outcome.trial.name for outcome in found] == ["m0.9-p0", "m0.9-p0.5"]
    assert all(outcome.value is not None for outcome in found)
    assert (folder / "sweep.csv").is_file()
    assert (folder / "report" / "report.html").is_file()
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*/metrics.jsonl")}
    capsys.readouterr()
    run_sweep(knn_sweep(tiny, momenta=(0.9,), preserve_probabilities=(0.0, 0.5), with_control=True))
    assert "3 trials, 2 finished before" in capsys.readouterr().out
    assert (folder / "m0.95-p0" / "finished.json").is_file()
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_sweep_writes_nothing_outside_its_folder(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = [tmp_path / name for name in ("here", "home", "scratch")]
    for place in places:
        place.mkdir()
    monkeypatch.chdir(places[0])
    monkeypatch.setenv("HOME", str(places[1]))
    monkeypatch.setattr("tempfile.tempdir", str(places[2]))
    recipe = knn_sweep(tiny, cells=((0.9, 0.5),))
    run_sweep(recipe)
    assert [path for place in places for path in place.iterdir()] == []
    assert set(tmp_path.iterdir()) == {*places, sweep_folder(recipe)}


def test_a_trial_trains_with_the_values_of_its_cell(tiny: Tiny) -> None:
    recipe = knn_sweep(tiny, cells=((0.9, 0.5), (0.0, 0.7)))
    run_sweep(recipe)
    for trial in trials_of(recipe):
        smoothing = read_run(sweep_folder(recipe) / trial.name).training.smoothing
        assert smoothing.momentum == trial.smoothing.momentum
        assert smoothing.preserve_probability == trial.smoothing.preserve_probability


def test_a_cell_that_fails_leaves_the_others_and_is_tried_again(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    from sts_core.errors import StateError
    from sts_pipelines.sweep import run

    def failing(jobs: list[object], **options: object) -> None:
        if "p0.5" in jobs[0].label:  # type: ignore[attr-defined]
            raise StateError("the disk is on fire")
        launch(jobs, **options)  # type: ignore[arg-type]

    recipe = knn_sweep(tiny, momenta=(0.9,), preserve_probabilities=(0.5, 0.0))
    monkeypatch.setattr(run, "launch", failing)
    with pytest.raises(RunError, match=r"1 of 2 trials failed: m0.9-p0.5 \(the disk is on fire\)"):
        run_sweep(recipe)
    assert (sweep_folder(recipe) / "m0.9-p0" / "finished.json").is_file()
    monkeypatch.undo()
    assert all(outcome.error is None for outcome in run_sweep(recipe))


def test_a_cell_that_applied_other_values_is_void_and_leaves_the_others(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sts_pipelines.sweep import run

    def always_without_p(jobs: list[Job], **options: object) -> None:
        line = {"step": 1, "momentum": 0.9, "preserve_probability": 0.0, "images_per_second": 1.0}
        MetricsLog(jobs[0].folder / "metrics.jsonl").append(line)

    recipe = knn_sweep(tiny, momenta=(0.9,), preserve_probabilities=(0.5, 0.0))
    monkeypatch.setattr(run, "launch", always_without_p)
    with pytest.raises(RunError, match=r"m0.9-p0.5 \(.* applied m=0.9 and p=0.0 at step 1: its result is void"):
        run_sweep(recipe)
    assert not (sweep_folder(recipe) / "m0.9-p0.5" / "finished.json").is_file()
    assert (sweep_folder(recipe) / "m0.9-p0" / "finished.json").is_file()


def test_a_sweep_into_a_file_is_refused_in_one_line(tiny: Tiny, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    recipe = knn_sweep(tiny, cells=((0.9, 0.5),))
    cluster = replace(recipe.pipeline.cluster, storage_path=str(tmp_path / "runs"))
    with pytest.raises(UsageError, match=r"cluster.storage-path must be a folder"):
        run_sweep(replace(recipe, pipeline=replace(recipe.pipeline, cluster=cluster)))


def test_a_finished_sweep_measures_what_it_is_asked_for_later_and_trains_nothing_again(tiny: Tiny) -> None:
    recipe = knn_sweep(tiny, cells=((0.9, 0.5),))
    run_sweep(recipe)
    folder = sweep_folder(recipe) / "m0.9-p0.5"
    before = (folder / "checkpoints" / "step-00000002" / "state.pt").stat().st_mtime_ns
    evaluation = replace(recipe.pipeline.evaluation, after_training=("knn", "linear"))
    pipeline = replace(recipe.pipeline, evaluation=evaluation)
    (outcome,) = run_sweep(SweepConfig(pipeline=pipeline, sweep=replace(recipe.sweep, metric="linear/teacher/top1")))
    assert outcome.value is not None
    assert (folder / "checkpoints" / "step-00000002" / "state.pt").stat().st_mtime_ns == before


def test_a_sweep_shows_the_numbers_of_the_settings_asked_for_now(tiny: Tiny) -> None:
    def value(k: int) -> float | None:
        recipe = knn_sweep(tiny, cells=((0.9, 0.5),))
        knn = replace(recipe.pipeline.evaluation.knn, ks=(k,))
        pipeline = replace(recipe.pipeline, evaluation=replace(recipe.pipeline.evaluation, knn=knn))
        (outcome,) = run_sweep(replace(recipe, pipeline=pipeline))
        return outcome.value

    first, other = value(20), value(1)
    assert first != other
    assert value(20) == first


def test_a_trial_that_failed_half_way_through_its_evaluation_is_not_finished(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sts_core.errors import StateError
    from sts_pipelines.evaluation import record

    measured: list[str] = []

    def knn_of_the_first(run: object, networks: list[str]) -> list[dict[str, object]]:
        (network,) = networks
        measured.append(network)
        if len(measured) > 1:
            raise StateError("out of memory")
        return [{"evaluation": "knn", "network": network, "metric": "top1", "value": 50.0, "which": "last"}]

    recipe = knn_sweep(tiny, cells=((0.9, 0.5),))
    with monkeypatch.context() as patch:
        patch.setitem(record._RECORDS, "knn", replace(record.record_of("knn"), measure=knn_of_the_first))
        with pytest.raises(RunError, match="out of memory"):
            run_sweep(recipe)
    assert measured == ["teacher", "student"]
    run_sweep(recipe)
    entries = json.loads((sweep_folder(recipe) / "m0.9-p0.5" / "results.json").read_text())["entries"]
    assert {entry["network"] for entry in entries} == {"teacher", "student"}


def test_a_bank_that_applied_other_values_voids_the_cells_concerned(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = bank.make_rule

    def rule_of_the_first(config: SmoothingConfig, *others: Any) -> Any:
        return rule(replace(config, preserve_probability=0.5), *others)

    pipeline = tiny("fixmatch-digits-sts", steps=1)
    grid = GridConfig(cells=((0.9, 0.5), (0.9, 0.0)), one_student=True, metric="few-labels/teacher/top1")
    recipe = SweepConfig(pipeline=pipeline, sweep=grid)
    monkeypatch.setattr(bank, "make_rule", rule_of_the_first)
    with pytest.raises(RunError, match=r"1 of 2 trials failed: m0.9-p0 \(m0.9-p0 was sampled with .* result is void"):
        run_sweep(recipe)


@pytest.mark.slow
def test_one_student_gives_the_teachers_of_separate_runs_bit_for_bit(tiny: Tiny, tmp_path: Path) -> None:
    pipeline = tiny("fixmatch-digits-sts", steps=4)
    grid = GridConfig(momenta=(0.0, 0.9), preserve_probabilities=(0.0, 0.5, 0.9), granularities=("layer", "channel"),
                      one_student=True, metric="few-labels/teacher/top1")  # fmt: skip
    recipe = SweepConfig(pipeline=pipeline, sweep=grid)
    found = {outcome.trial.name: outcome for outcome in run_sweep(recipe)}
    (shared,) = sweep_folder(recipe).glob("fixmatch-digits-sts-*")
    bank = read_checkpoint(shared / "checkpoints" / "step-00000004")["bank"]["teachers"]
    assert set(bank) == set(found)
    # The report has the plane of p and m, with lines of equal m_eff.
    assert 'class="iso"' in (sweep_folder(recipe) / "report" / "report.html").read_text()
    for trial in trials_of(recipe):
        job = job_of(trial, pipeline, tmp_path / "separate")
        launch([job], name=job.label, folder=job.folder)
        alone = read_checkpoint(job.folder / "checkpoints" / "step-00000004")["method"]
        for name, tensor in bank[trial.name].items():
            assert torch.equal(tensor, alone[f"teacher.{name}"]), (trial.name, name)
        results = json.loads((job.folder / "results.json").read_text())["entries"]
        top1 = next(
            e["value"] for e in results if (e["network"], e["metric"], e["which"]) == ("teacher", "top1", "last")
        )
        assert found[trial.name].value == top1
