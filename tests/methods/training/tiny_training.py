"""The smallest method that has everything a real one has, to test the loop with; as a script, a run to be killed."""

import itertools
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from sts_core import Buffers, Network, make_teacher, spatial_temporal_smoothing
from sts_core.distributed import gather_batch
from sts_methods.batch import Batch
from sts_methods.data.config import DataConfig
from sts_methods.methods.base import StepResult, StudentTeacherMethod
from sts_methods.networks.batch_norm import use_cross_rank_batch_norm
from sts_methods.runs.metrics_log import MetricsLog
from sts_methods.runs.runtime import LocalRuntime
from sts_methods.training.config import TrainingConfig
from sts_methods.training.loop import TrainingResult, fit
from sts_methods.training.optimizers import OptimizerConfig


@dataclass(frozen=True, kw_only=True)
class TinyConfig:
    width: int = 8
    nan_at_step: int = -1
    nan_gradient_at_step: int = -1
    collapse_from_step: int = 1 << 30


class TinyMethod(StudentTeacherMethod):
    """Predict the teacher's embedding of the other view; remember recent ones in a queue."""

    teacher_buffers: Buffers = "keep"
    queue: Tensor

    def __init__(self, config: TinyConfig, *, seed: int) -> None:
        super().__init__()
        self.config = config
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.student: nn.Module = nn.Sequential(
                nn.Conv2d(3, config.width, 3, stride=2),
                nn.BatchNorm2d(config.width),
                nn.ReLU(),
                nn.AdaptiveAvgPool2d(1),
                nn.Flatten(),
                nn.Linear(config.width, 4),
            )
            self.predictor = nn.Linear(4, 4)
        use_cross_rank_batch_norm(self.student)
        self.teacher = make_teacher(self.student)
        self.register_buffer("queue", torch.zeros(4, 16))

    def forward(self, batch: Batch) -> StepResult:
        predicted = F.normalize(self.predictor(self.student(batch.views[0])), dim=1)
        with torch.no_grad():
            target = F.normalize(self.teacher(batch.views[1]), dim=1)
        loss = (2 - 2 * (predicted * target).sum(dim=1)).mean() + 0.01 * (predicted @ self.queue).square().mean()
        self.queue = torch.cat([self.queue[:, 1:], gather_batch(target).mean(dim=0)[:, None]], dim=1)
        if batch.step == self.config.nan_at_step:
            loss = loss * float("nan")
        if batch.step == self.config.nan_gradient_at_step:
            loss = loss + (0 * self.predictor.bias).sum().sqrt()  # adds 0, with the derivative 0 * inf
        std = predicted.detach().std(dim=0).mean()
        return StepResult(loss, {"feature_std": std * (batch.step < self.config.collapse_from_step)})

    def backbone(self, network: Network) -> nn.Module:
        return self.teacher if network == "teacher" else self.student


def tiny_config(**changes: Any) -> TrainingConfig:
    """A run of 12 steps, 4 to the epoch, on 8 px digits."""
    values: dict[str, Any] = {
        "method": TinyConfig(),
        "smoothing": spatial_temporal_smoothing(0.9, 0.5, buffers="keep"),
        "data": DataConfig(dataset="digits", image_size=8),
        "optimizer": OptimizerConfig(lr=0.5),
        "global_batch_size": 352,
        "steps": 12,
        "checkpoint_every_steps": 2,
        "log_every_steps": 1,
    }
    return TrainingConfig(**(values | changes))


def photos_config(folder: Path, **changes: Any) -> TrainingConfig:
    """Four epochs of two steps on eight photographs, one of which cannot be read."""
    data = DataConfig(dataset="images", root=str(folder), image_size=8, on_error="skip")
    return tiny_config(data=data, global_batch_size=4, steps=8, track_drift=True, **changes)


def write_photos(folder: Path) -> None:
    folder.mkdir()
    for number in range(8):
        pixels = np.random.default_rng(number).integers(0, 256, (12, 12, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    (folder / "3.png").write_bytes(b"not an image")


def script_config(num_steps: int) -> TrainingConfig:
    """What this module trains as a script."""
    return tiny_config(steps=num_steps, global_batch_size=32, checkpoint_every_steps=1)


def tiny_fit(config: TrainingConfig, runtime: Any) -> TrainingResult:
    assert isinstance(config.method, TinyConfig)
    return fit(config, runtime, method=TinyMethod(config.method, seed=config.seed))


def runtime(folder: Path) -> LocalRuntime:
    return LocalRuntime(folder, progress=False)


class CrashError(Exception):
    """What a CrashingRuntime dies of."""


class CrashingRuntime(LocalRuntime):
    """Dies in the report of the given step, after its checkpoint was handed over."""

    def __init__(self, folder: Path, crash_at: int) -> None:
        super().__init__(folder, progress=False)
        self.crash_at = crash_at

    def report(self, metrics: Mapping[str, float], save: Callable[[], dict[str, Any]] | None = None) -> None:
        super().report(metrics, save)
        if metrics["step"] == self.crash_at:
            raise CrashError


def asked_runtime(folder: Path, *, after: int, copy_to: Path) -> LocalRuntime:
    """A runtime that is asked for a checkpoint after a step, with which a run in `copy_to` can begin."""
    steps = itertools.count(1)

    def answer() -> None:
        shutil.copytree(folder / "checkpoints", copy_to / "checkpoints")

    return LocalRuntime(folder, progress=False, request=lambda: answer if next(steps) == after else None)


def weights(result: TrainingResult) -> dict[str, Tensor]:
    """All tensors of a run: student, teachers, queue."""
    bank = {f"bank.{n}.{k}": v for n, m in result.bank.items() for k, v in m.state_dict().items()}
    return {**result.method.state_dict(), **bank}


def assert_same_bits(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    assert [name for name in left if not torch.equal(left[name], right[name])] == []


def logged(folder: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without what depends on the clock."""
    entries = MetricsLog(folder / "metrics.jsonl").read()
    return [{k: v for k, v in entry.items() if k != "images_per_second"} for entry in entries]


if __name__ == "__main__":
    # tiny_training.py FOLDER STEPS: the parent kills this process when it likes, or starts it with torchrun.
    tiny_fit(script_config(int(sys.argv[2])), LocalRuntime(sys.argv[1], progress=False))
