"""Training runs of `sts_methods.fit` on null GPUs, counted phase by phase: read inside their process."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from sts_core import Precision, spatial_temporal_smoothing
from sts_core.kernels import triton
from sts_methods import (
    ByolConfig,
    DataConfig,
    DinoConfig,
    FixMatchConfig,
    LocalRuntime,
    MeanTeacherConfig,
    MethodConfig,
    MoCoConfig,
    MoCoV3Config,
    OptimizerConfig,
    TrainingConfig,
    TrainingData,
    method_record,
)
from sts_methods.training import run
from sts_methods.training.failure_checks import FailureChecks
from sts_methods.training.learner import Learner
from tests.null_gpu.counters import answer, counted, origins

Step = dict[str, dict[str, Any]]
"""The counts of a training step by phase."""
Phase = Callable[[str], AbstractContextManager[None]]
_PHASES = {
    "gradients": (Learner, "accumulate_gradients"),
    "guard": (run.Run, "confirm_step"),
    "student": (Learner, "update_student"),
    "teacher": (Learner, "update_teacher"),
    "end": (run.Run, "end_step"),
}


def method_config(name: str, *, world_size: int) -> MethodConfig:
    """The method on a network that is small and has all kinds of layers."""
    makers: dict[str, Callable[[], MethodConfig]] = {
        "byol": lambda: ByolConfig(backbone="test_resnet", hidden_dim=64, projection_dim=16),
        "moco": lambda: MoCoConfig(backbone="test_resnet", dim=16, queue_size=256, bn_groups=world_size),
        "moco_v3": lambda: MoCoV3Config(backbone="test_resnet", hidden_dim=64, dim=16),
        "fixmatch": lambda: FixMatchConfig(backbone="wrn_28_2", num_classes=10),
        "mean_teacher": lambda: MeanTeacherConfig(backbone="wrn_28_2", num_classes=10),
        "dino": lambda: DinoConfig(backbone="test_vit", num_prototypes=64),
    }
    return makers[name]()


def training_config(name: str, *, world_size: int, precision: Precision = "float32", **changes: Any) -> TrainingConfig:
    """A few steps of a method on digits, 8 images on each GPU."""
    labels = {"num_labels": 40, "unlabelled_ratio": 2} if name in ("fixmatch", "mean_teacher") else {}
    method = method_config(name, world_size=world_size)
    record = method_record(method)
    assert record is not None
    values: dict[str, Any] = {
        "method": method,
        "smoothing": spatial_temporal_smoothing(0.99, 0.7, buffers="copy" if name == "fixmatch" else "keep"),
        "data": DataConfig(image_size=32, views=record.views, num_local_crops=2, **labels),
        "optimizer": OptimizerConfig(name="adamw" if name == "dino" else "sgd"),
        "global_batch_size": 8 * world_size,
        "steps": 4,
        "precision": precision,
        "checkpoint_every_steps": None,
        "log_every_steps": 1000,
        "verify_ranks_every_steps": None,
    }
    return TrainingConfig(**(values | changes))


def runtime(folder: Path) -> LocalRuntime:
    return LocalRuntime(folder, device="cuda:0", progress=False)


@contextmanager
def counted_steps(
    *, watched: int | None = None, stop: tuple[int, type[Exception]] | None = None
) -> Iterator[list[Step]]:
    """The counts of the steps that `fit` takes inside; of step `watched`, under "waits", where it waited.

    `stop` is a step before which `fit` meets an exception, and what exception.
    """
    steps: list[Step] = []

    @contextmanager
    def phase(name: str) -> Iterator[None]:
        if len(steps) - 1 != watched:
            with counted(steps[-1], name):
                yield
            return
        with origins() as places:
            yield
        waits = steps[-1].setdefault("waits", {})
        waits.update({f"{name}: {place}": times for place, times in places.items()})

    with ExitStack() as stack:
        stack.enter_context(patch.object(triton, "_problem", lambda device: ""))  # its trial needs a kernel that runs
        batches = _counted_batches(TrainingData.steps, steps, phase, stop)
        stack.enter_context(patch.object(TrainingData, "steps", batches))
        # It asks whether all weights are finite, where 0 would mean no.
        stack.enter_context(patch.object(FailureChecks, "check_weights", _answered(FailureChecks.check_weights, 1)))
        # It compares what a kernel has put together.
        stack.enter_context(patch.object(run, "verify_ranks", _answered(run.verify_ranks, 0, up_to_bytes=1 << 40)))
        for name, (owner, function) in _PHASES.items():
            stack.enter_context(patch.object(owner, function, _counted(getattr(owner, function), name, phase)))
        yield steps


def _answered(function: Callable[..., None], value: int, **options: int) -> Callable[..., None]:
    """The function, with what it reads from the device."""

    def call(*arguments: Any, **named: Any) -> None:
        answer(value, **options)
        function(*arguments, **named)
        answer(0)

    return call


def _counted(function: Callable[..., Any], name: str, phase: Phase) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        with phase(name):
            return function(*arguments, **named)

    return call


def _counted_batches(
    make: Callable[..., Iterator[Any]], steps: list[Step], phase: Phase, stop: tuple[int, type[Exception]] | None
) -> Callable[..., Iterator[Any]]:
    def batches(*arguments: Any, **named: Any) -> Iterator[Any]:
        made = make(*arguments, **named)
        while True:
            if stop is not None and len(steps) == stop[0]:
                raise stop[1]
            steps.append({})
            with phase("data"):
                batch = next(made)
            yield batch

    return batches
