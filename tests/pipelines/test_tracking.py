"""Trackers: TensorBoard for real, the others against stand-ins, and a plain word when one is not installed."""

import sys
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sts_pipelines.errors import UsageError
from sts_pipelines.launcher import launch
from sts_pipelines.pipeline import PipelineConfig, TrackingConfig
from sts_pipelines.running import jobs_of
from sts_pipelines.tracking import build_trackers, check_installed

Tiny = Callable[..., PipelineConfig]


def tracked(pipeline: PipelineConfig, **changes: Any) -> PipelineConfig:
    return replace(
        pipeline,
        tracking=replace(pipeline.tracking, **changes),
        evaluation=replace(pipeline.evaluation, after_training=()),
    )


def run(pipeline: PipelineConfig) -> Path:
    launch(jobs_of(pipeline), name=pipeline.run_name, folder=pipeline.folder)
    return pipeline.folder


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


def test_weights_and_biases_resumes_by_the_name_of_the_folder(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wandb = Recorder("wandb")
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setattr("sts_pipelines.launcher.check_installed", lambda config: None)
    pipeline = tracked(tiny("byol-digits-sts", steps=2), tensorboard=False, wandb_project="sts")
    folder = run(pipeline)
    (start,) = wandb.named("init")
    assert (start["id"], start["resume"], start["project"]) == (folder.name, "allow", "sts")
    assert [call["step"] for call in wandb.named("log")] == [1, 2]
    assert wandb.named("finish")


def test_mlflow_resumes_by_the_id_in_the_folder(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = Recorder("mlflow")
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setattr("sts_pipelines.launcher.check_installed", lambda config: None)
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
    monkeypatch.setattr("sts_pipelines.launcher.check_installed", lambda config: None)
    pipeline = tracked(tiny("byol-digits-sts", steps=2), tensorboard=False, mlflow_uri="sqlite:x")
    with pytest.raises(UsageError, match=r"^MLflow does not start \(no answer\): set it up, or leave it out"):
        run(pipeline)


def test_a_tracker_that_fails_later_does_not_end_the_run(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = Broken("wandb", "log", 1)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setattr("sts_pipelines.launcher.check_installed", lambda config: None)
    pipeline = tracked(tiny("byol-digits-sts", steps=4), tensorboard=False, wandb_project="sts")
    with pytest.warns(UserWarning, match=r"Weights & Biases failed \(no answer\): the run goes on") as caught:
        folder = run(pipeline)
    assert len(caught) == 1
    assert [call["step"] for call in wandb.named("log")] == [1]
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 4
