"""Trackers: TensorBoard for real, the others against stand-ins, and a plain word when one is not installed."""

import sys
import time
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sts_methods.runs.runtime import RunPlan
from sts_pipelines.config.pipeline import ComparisonConfig, PipelineConfig, TrackingConfig
from sts_pipelines.errors import UsageError
from sts_pipelines.launch.job import jobs_of
from sts_pipelines.launch.trackers import TensorBoard, build_trackers, check_installed
from tests.pipelines.conftest import run

Tiny = Callable[..., PipelineConfig]


def tracked(pipeline: PipelineConfig, **changes: Any) -> PipelineConfig:
    return replace(
        pipeline,
        tracking=replace(pipeline.tracking, **changes),
        evaluation=replace(pipeline.evaluation, after_training=()),
    )


def test_tensorboard_gets_every_logged_step_once_even_after_a_resume(tiny: Tiny) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    pipeline = tracked(tiny("byol-digits-sts", steps=6))
    folder = run(pipeline)
    newest = folder / "checkpoints" / "step-00000006" / "state.pt"
    newest.write_bytes(b"torn")
    with pytest.warns(UserWarning, match="damaged"):
        run(pipeline)  # steps 5 and 6 are done again
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3, 4, 5, 6]
    assert {"momentum", "preserve_probability", "images_per_second"} <= set(events.Tags()["scalars"])


def test_tensorboard_hides_the_steps_of_a_run_that_was_killed_before_its_first_checkpoint(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    plan = RunPlan(config={}, first_step=0, total_steps=3, steps_per_epoch=3, images_per_step=8, keep_checkpoints=1)
    for last in (3, 2):
        tracker = TensorBoard(tmp_path)
        tracker.start(plan)
        for step in range(1, last + 1):
            tracker.log({"step": step, "loss": float(last)})
        tracker.close()
        time.sleep(1.1)  # event files are named, and read in order, by the second
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 2.0), (2, 2.0)]


def test_nothing_is_tracked_that_was_not_asked_for(tiny: Tiny, tmp_path: Path) -> None:
    assert build_trackers(tracked(tiny("byol-digits-sts"), tensorboard=False), tmp_path) == []


@pytest.mark.parametrize("config", [TrackingConfig(wandb_project="x"), TrackingConfig(mlflow_uri="file:x")])
def test_a_tracker_that_is_not_installed_is_named_before_the_start(config: TrackingConfig) -> None:
    with pytest.raises(UsageError, match=r"needs the package (wandb|mlflow)"):
        check_installed(config)


class Recorder(types.ModuleType):
    """Stands in for wandb and mlflow, and remembers the calls."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.info = types.SimpleNamespace(run_id="run-1")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*positional: Any, **named: Any) -> "Recorder":
            self.calls.append((name, positional, named))
            return self

        return call

    def named(self, name: str) -> list[dict[str, Any]]:
        return [named for call, _, named in self.calls if call == name]


def test_weights_and_biases_resumes_by_the_name_of_the_run(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = Recorder("wandb")
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setattr("sts_pipelines.launch.driver.check_installed", lambda config: None)
    pipeline = tracked(tiny("byol-digits-sts", steps=2), tensorboard=False, wandb_project="sts")
    run(pipeline)
    (start,) = wandb.named("init")
    assert (start["id"], start["resume"], start["project"]) == (pipeline.run_name, "allow", "sts")
    assert [call["step"] for call in wandb.named("log")] == [1, 2]
    assert wandb.named("finish")


def test_variants_of_the_same_name_in_two_comparisons_are_two_runs(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wandb = Recorder("wandb")
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    plan = RunPlan(config={}, first_step=0, total_steps=3, steps_per_epoch=3, images_per_step=8, keep_checkpoints=1)
    for seed in (0, 1, 1):
        base = tracked(tiny("byol-digits-tma", seed=seed), tensorboard=False, wandb_project="sts")
        (job,) = jobs_of(ComparisonConfig(pipeline=base, variants={"tma": base.training.smoothing}))
        assert job.folder.name == "tma"
        for tracker in build_trackers(job.pipeline, job.folder):
            tracker.start(plan)
    one, two, resumed = (start["id"] for start in wandb.named("init"))
    assert one != two == resumed


def test_mlflow_resumes_by_the_id_in_the_folder(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = Recorder("mlflow")
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setattr("sts_pipelines.launch.driver.check_installed", lambda config: None)
    pipeline = tracked(tiny("byol-digits-sts", steps=2), tensorboard=False, mlflow_uri="file:x")
    run(pipeline)
    run(pipeline)
    assert [start["run_id"] for start in mlflow.named("start_run")] == [None, "run-1"]
    assert [call["step"] for call in mlflow.named("log_metrics")] == [1, 2]


class Broken(Recorder):
    """A service that can be reached for `working` calls of `method` only."""

    def __init__(self, name: str, method: str, working: int) -> None:
        super().__init__(name)
        self.method, self.working = method, working

    def __getattr__(self, name: str) -> Any:
        if name == self.method and len(self.named(name)) >= self.working:
            raise ConnectionError("no answer\nand much more")
        return super().__getattr__(name)


def test_a_tracker_that_does_not_start_is_one_sentence(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", Broken("mlflow", "start_run", 0))
    monkeypatch.setattr("sts_pipelines.launch.driver.check_installed", lambda config: None)
    pipeline = tracked(tiny("byol-digits-sts", steps=2), tensorboard=False, mlflow_uri="sqlite:x")
    with pytest.raises(UsageError, match=r"^MLflow does not start \(no answer\): set it up, or leave it out"):
        run(pipeline)


def test_a_tracker_that_fails_later_does_not_end_the_run(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = Broken("wandb", "log", 1)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setattr("sts_pipelines.launch.driver.check_installed", lambda config: None)
    pipeline = tracked(tiny("byol-digits-sts", steps=4), tensorboard=False, wandb_project="sts")
    with pytest.warns(UserWarning, match=r"Weights & Biases failed \(no answer\): the run continues") as caught:
        folder = run(pipeline)
    assert len(caught) == 1
    assert [call["step"] for call in wandb.named("log")] == [1]
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 4
