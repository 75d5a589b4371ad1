"""The training loop: the paper's algorithm for any method, on whatever runtime launched it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from torch import nn

from sts_core import Network
from sts_methods.data.batches import TrainingData
from sts_methods.methods.base import StudentTeacherMethod
from sts_methods.runs.runtime import Runtime
from sts_methods.training.config import TrainingConfig
from sts_methods.training.observation import Observation
from sts_methods.training.precision import gpu_arithmetic
from sts_methods.training.run import Run

Phase = Literal["input", "student", "teacher", "end of step"]
"""Of a step: waiting for images; loss, gradients and update of the student; that of the teacher; book-keeping."""


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """What a run leaves in memory; the same is in its folder."""

    method: StudentTeacherMethod
    """The trained method."""
    step: int
    """Optimizer steps done."""
    metrics: Mapping[str, float]
    """The last metrics reported."""
    folder: Path
    """The run folder."""
    bank: Mapping[str, nn.Module] = field(default_factory=dict)
    """The bank's teachers by name: of several ranks each has some of them."""

    def backbone(self, network: Network) -> nn.Module:
        """The feature extractor of the teacher or the student."""
        return self.method.backbone(network)


def fit(
    config: TrainingConfig,
    runtime: Runtime,
    *,
    method: StudentTeacherMethod | None = None,
    data: TrainingData | None = None,
    observation: Observation | None = None,
    ended: Callable[[Phase], None] | None = None,
) -> TrainingResult:
    """Train `config` on `runtime`, from its newest checkpoint if it has one.

    Each step, as in the paper's algorithm: the loss of the student against the teacher, an optimizer step of the
    student, an update of the teacher. A `method` or `data` of your own takes the place of the config's. An
    `observation` measures the networks after some of the epochs, and changes no bit of them. `ended` is called
    after every phase of a step, for a clock.

    >>> config = TrainingConfig(method=ByolConfig(backbone="test_resnet"), data=DataConfig(image_size=12), steps=2)
    >>> result = fit(config, LocalRuntime("runs/digits", progress=False))
    >>> result.step, (result.folder / "teacher.safetensors").is_file()
    (2, True)
    """
    with gpu_arithmetic(tf32=config.tf32, cudnn_benchmark=config.cudnn_benchmark):
        run = Run(config, runtime, method=method, data=data, observation=observation)
        return _fit(run, ended or _nothing)


def _fit(run: Run, ended: Callable[[Phase], None]) -> TrainingResult:
    try:
        run.start()
        for step in range(run.step, run.last_step):
            batches = next(run.batches)
            ended("input")
            metrics = run.learner.accumulate_gradients(batches)
            run.confirm_step()
            run.learner.update_student(step)
            ended("student")
            run.learner.update_teacher(step)
            ended("teacher")
            run.end_step(metrics, batches)
            ended("end of step")
        run.save_backbones()
    finally:
        run.close()
    return TrainingResult(
        method=run.learner.method,
        step=run.step,
        metrics=run.metrics,
        folder=run.runtime.folder,
        bank=run.learner.bank.teachers if run.learner.bank is not None else {},
    )


def _nothing(phase: Phase) -> None:
    return
