"""Metrics on their way to TensorBoard, Weights & Biases and MLflow; metrics.jsonl is written in any case.

A tracker is told the first step of a run, so that after a resume the steps that are done again replace the old ones.
"""

import importlib.util
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from sts_methods import RunPlan
from sts_pipelines.config.pipeline import PipelineConfig, TrackingConfig
from sts_pipelines.errors import UsageError, first_line


class Tracker(Protocol):
    """Where metrics go, on rank 0 only."""

    def start(self, plan: RunPlan) -> None: ...

    def log(self, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


def check_installed(config: TrackingConfig) -> None:
    """Raise before anything is launched if a tracker was asked for that is not installed."""
    asked = {"tensorboard": config.tensorboard, "wandb": config.wandb_project, "mlflow": config.mlflow_uri}
    for package, wanted in asked.items():
        if wanted and importlib.util.find_spec(package) is None:
            raise UsageError(f"tracking needs the package {package}, which is not installed: pip install {package}")


def build_trackers(pipeline: PipelineConfig, folder: Path) -> list[Tracker]:
    """The trackers that a pipeline asks for."""
    config, trackers = pipeline.tracking, list[Tracker]()
    if config.tensorboard:
        trackers.append(OptionalTracker(TensorBoard(folder), "TensorBoard"))
    if config.wandb_project is not None:
        wandb = WeightsAndBiases(config.wandb_project, pipeline.run_name, folder)
        trackers.append(OptionalTracker(wandb, "Weights & Biases"))
    if config.mlflow_uri is not None:
        trackers.append(OptionalTracker(MlFlow(config.mlflow_uri, pipeline.run_name, folder), "MLflow"))
    return trackers


class OptionalTracker:
    """A tracker that must start, and that a run does without when it fails later: a server may be gone for a while."""

    def __init__(self, tracker: Tracker, name: str) -> None:
        self.tracker, self.name = tracker, name
        self.failed = False

    def start(self, plan: RunPlan) -> None:
        try:
            self.tracker.start(plan)
        except Exception as error:
            message = f"{self.name} does not start ({first_line(error)}): set it up, or leave it out of tracking"
            raise UsageError(message) from error

    def log(self, metrics: Mapping[str, float]) -> None:
        self._attempt(lambda: self.tracker.log(metrics))

    def close(self) -> None:
        self._attempt(self.tracker.close)

    def _attempt(self, call: Callable[[], None]) -> None:
        if self.failed:
            return
        try:
            call()
        except Exception as error:
            self.failed = True
            message = f"{self.name} failed ({first_line(error)}): the run continues without it, and with metrics.jsonl"
            warnings.warn(message, UserWarning, stacklevel=3)


class TensorBoard:
    """Event files in <run>/tensorboard."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "tensorboard"
        self._writer: Any = None

    def start(self, plan: RunPlan) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # What an interrupted run logged beyond its last checkpoint is hidden by the steps that follow now.
        self._writer = SummaryWriter(str(self.folder), purge_step=plan.first_step + 1)

    def log(self, metrics: Mapping[str, float]) -> None:
        for name, value in _numbers(metrics):
            self._writer.add_scalar(name, value, int(metrics["step"]))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class WeightsAndBiases:
    """A W&B run whose id is the run's name, so that a resumed run continues in the same place.

    The folder's name will not do: every comparison has one called tma.
    """

    def __init__(self, project: str, name: str, folder: Path) -> None:
        self.project, self.name, self.folder = project, name, folder
        self._run: Any = None

    def start(self, plan: RunPlan) -> None:
        import wandb

        self._run = wandb.init(
            project=self.project,
            id=self.name,
            name=self.name,
            resume="allow",
            dir=str(self.folder),
            config=dict(plan.config),
        )

    def log(self, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(_numbers(metrics)), step=int(metrics["step"]))

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()


class MlFlow:
    """An MLflow run; its id is kept in the run folder, so that a resumed run continues in the same place."""

    def __init__(self, uri: str, name: str, folder: Path) -> None:
        self.uri, self.name, self.folder = uri, name, folder
        self._mlflow: Any = None

    def start(self, plan: RunPlan) -> None:
        import mlflow

        mlflow.set_tracking_uri(self.uri)
        note = self.folder / ".mlflow-run"
        known = note.read_text() if note.is_file() else None
        run = mlflow.start_run(run_id=known, run_name=None if known else self.name)
        note.write_text(run.info.run_id)
        self._mlflow = mlflow

    def log(self, metrics: Mapping[str, float]) -> None:
        self._mlflow.log_metrics(dict(_numbers(metrics)), step=int(metrics["step"]))

    def close(self) -> None:
        if self._mlflow is not None:
            self._mlflow.end_run()


def _numbers(metrics: Mapping[str, float]) -> Sequence[tuple[str, float]]:
    return [
        (name, float(value)) for name, value in metrics.items() if isinstance(value, int | float) and name != "step"
    ]
