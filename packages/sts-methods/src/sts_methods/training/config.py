"""A complete training run as a value."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from sts_core import ConfigError, Precision, SmoothingConfig, cosine_momentum, spatial_temporal_smoothing
from sts_core.fields import added, free, incidental
from sts_core.files import is_file_name
from sts_methods.data.config import DataConfig
from sts_methods.methods.base import MethodConfig
from sts_methods.methods.registry import METHODS, method_record
from sts_methods.training.failure_checks import Reaction
from sts_methods.training.initial import FROM_SEED, InitialConfig
from sts_methods.training.optimizers import OptimizerConfig
from sts_methods.validation import check_not_negative

MomentumSchedule = Literal["constant", "cosine", "warmup"]


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """A complete training run. Give `epochs` or `steps`, and a method; everything else has a default for digits."""

    method: MethodConfig = field(metadata={"choices": METHODS})
    """The method and its numbers."""
    initial: InitialConfig = added(FROM_SEED)
    """Trained weights to start from."""
    smoothing: SmoothingConfig = field(
        # The paper's BYOL, m from STS repo; its teacher runs in train mode with statistics of its own.
        default_factory=lambda: spatial_temporal_smoothing(0.99, 0.7, buffers="keep")
    )
    """How the teacher follows the student."""
    momentum_schedule: MomentumSchedule = "constant"
    """constant, cosine from `smoothing.momentum` to 1 (BYOL) or warmup to it from a plain mean, min(1 - 1/(k + 2), m)
    (Mean Teacher); m = 0, a spatial ensemble, stays 0 in all."""
    data: DataConfig = field(default_factory=DataConfig)
    """Images and views."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """How the student learns."""
    global_batch_size: int = 256
    """Images per optimizer step over all workers and micro-batches."""
    epochs: int | None = None
    """Length of the training in passes over the data."""
    steps: int | None = None
    """Length of the training in optimizer steps, instead of `epochs`."""
    stop_after_epochs: int | None = added(None)
    """End after so many passes, as the first part of the whole: its length still sets learning rate and momentum."""
    accumulation: int = 1
    """Micro-batches per optimizer step; the teacher moves once per optimizer step."""
    precision: Precision = "float32"
    """Arithmetic of the forward pass under autocast; weights and teacher stay float32."""
    tf32: bool = added(True)
    """Convolutions of float32 in TF32 on GPUs that have it (from Ampere on), as torch does unless told otherwise; False
    has no TF32 in training: float32 as on the paper's GPUs. An evaluation after it has torch's setting."""
    cudnn_benchmark: bool = added(False)
    """Let cuDNN try its algorithms and keep the fastest; otherwise it takes the same ones after every start."""
    channels_last: bool = free(True)
    """Memory order of images and convolutions; 1.1 to 1.3 times faster on CPUs."""
    compile: bool = free(False)
    """torch.compile the method."""
    seed: int = free(0)
    """The key of all draws: initial weights, data order, augmentations, masks."""
    checkpoint_every_steps: int | None = incidental(1000)
    """Steps between checkpoints; one is written at the end in any case."""
    checkpoint_every_minutes: float | None = incidental(None)
    """Minutes between checkpoints, looked at when metrics are logged."""
    keep_checkpoints: int = incidental(3)
    """Checkpoints that stay on the disk."""
    log_every_steps: int = incidental(50)
    """Steps between lines of metrics.jsonl."""
    verify_ranks_every_steps: int | None = incidental(1000)
    """Steps between comparisons of all weights across workers."""
    on_nonfinite: Reaction = incidental("stop")
    """A loss or gradient that is not finite stops the run, or leaves the whole batch out with a warning (a copy of
    buffers a step)."""
    on_collapse: Reaction = incidental("warn")
    """Collapsed features stop the run, or give a warning."""
    collapse_feature_std: float = incidental(1e-3)
    """Features count as collapsed below this standard deviation (of L2-normalised ones, healthy is 1/sqrt(width))."""
    collapse_effective_rank: float = incidental(1.05)
    """Features count as collapsed below this effective rank (1 is a line); 0 does not look at it."""
    track_drift: bool = free(False)
    """Record how far the teacher's weights and outputs move per epoch (the paper's smoothing figure)."""
    bank: Mapping[str, SmoothingConfig] = free(default_factory=dict)
    """Further teachers of the same student by name (letters, digits, - _ and .), each at constant momentum; they never
    influence the training."""

    def __post_init__(self) -> None:
        _check_choices(self)
        _check_counts(self)
        _check_views(self)
        _check_bank(self)

    def momentum_at(self, step: int, *, total_steps: int) -> float:
        """m at a step. A spatial ensemble (m = 0) has no moving average to schedule and stays at 0."""
        m = self.smoothing.momentum
        if self.momentum_schedule == "warmup":
            return min(1.0 - 1.0 / (step + 2), m)  # mean-teacher counts the step before it updates
        if self.momentum_schedule == "constant" or m == 0.0:
            return m
        return cosine_momentum(step, total_steps=total_steps, start=m)

    def total_steps(self, steps_per_epoch: int) -> int:
        """The length that schedules refer to."""
        return self.steps if self.steps is not None else (self.epochs or 0) * steps_per_epoch

    def last_step(self, steps_per_epoch: int) -> int:
        """Where the training ends: after `total_steps`, or before."""
        total, stop = self.total_steps(steps_per_epoch), self.stop_after_epochs
        return total if stop is None else min(total, stop * steps_per_epoch)


def _check_choices(config: TrainingConfig) -> None:
    choices: dict[str, Any] = {
        "momentum_schedule": MomentumSchedule,
        "precision": Precision,
        "on_nonfinite": Reaction,
        "on_collapse": Reaction,
    }
    for name, options in choices.items():
        if getattr(config, name) not in get_args(options):
            known = ", ".join(get_args(options))
            raise ConfigError(f"{name} must be one of {known}, got {getattr(config, name)!r}", fields=(name,))


_POSITIVE_OR_NONE = (
    "epochs", "steps", "stop_after_epochs", "checkpoint_every_steps", "verify_ranks_every_steps",
    "checkpoint_every_minutes",
)  # fmt: skip


def _check_counts(config: TrainingConfig) -> None:
    if (config.epochs is None) == (config.steps is None):
        raise ConfigError(
            f"exactly one of epochs and steps must be given, got epochs={config.epochs} and steps={config.steps}: "
            f"say how long to train in one of them and set the other to null",
            fields=("epochs", "steps"),
        )
    for name in _POSITIVE_OR_NONE:
        if (value := getattr(config, name)) is not None and not value > 0:
            raise ConfigError(f"{name} must be positive or None, got {value!r}", fields=(name,))
    if config.epochs is not None and (config.stop_after_epochs or 0) > config.epochs:
        raise ConfigError(
            f"stop_after_epochs must be at most epochs={config.epochs}, got {config.stop_after_epochs}",
            fields=("stop_after_epochs", "epochs"),
        )
    check_not_negative(
        collapse_feature_std=config.collapse_feature_std, collapse_effective_rank=config.collapse_effective_rank
    )
    if not isinstance(config.seed, int) or not 0 <= config.seed < 2**64:
        raise ConfigError(f"seed must be an integer in [0, 2**64), got {config.seed!r}", fields=("seed",))
    for name in ("global_batch_size", "accumulation", "keep_checkpoints", "log_every_steps"):
        if not getattr(config, name) >= 1:
            raise ConfigError(f"{name} must be at least 1, got {getattr(config, name)!r}", fields=(name,))


def _check_views(config: TrainingConfig) -> None:
    record = method_record(config.method)
    if record is not None and config.data.views not in (record.views, *record.also_takes):
        raise ConfigError(
            f"data.views must be the views that {record.name} trains on, got {config.data.views!r}: "
            f"set it to {record.views!r}",
            fields=("data", "method"),
        )


def _check_bank(config: TrainingConfig) -> None:
    for name, smoothing in config.bank.items():
        if smoothing.buffers == "keep":
            raise ConfigError(
                f"a teacher of the bank never runs and must take its batch norm statistics from the student, got "
                f"buffers='keep' for {name!r}: use 'copy' or 'smooth'",
                fields=("bank",),
            )
        if not is_file_name(name):
            raise ConfigError(
                f"a teacher of the bank is saved under its name, which may have letters, digits, '-', '_' and, not at "
                f"its start, '.', got {name!r}: rename it",
                fields=("bank",),
            )
