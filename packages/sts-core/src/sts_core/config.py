"""What a teacher update is, as a value: m, p, the granularity of a unit and the treatment of buffers."""

import math
import warnings
from dataclasses import dataclass, replace
from typing import Literal, get_args

from sts_core.errors import ConfigError
from sts_core.fields import free

Granularity = Literal["layer", "module", "channel", "neuron"]
"""What one draw decides for: a tensor, the tensors of a module, an index of dimension 0, or a single weight."""
Buffers = Literal["copy", "smooth", "keep"]
"""What becomes of the teacher's buffers: the student's, smoothed like parameters, or left to the teacher."""
Network = Literal["teacher", "student"]
"""Which of the two networks is meant."""
Precision = Literal["float32", "bfloat16", "float16"]
"""What a training computes in."""


def check_config(config: object) -> "SmoothingConfig":
    """The config itself, or a ConfigError."""
    if not isinstance(config, SmoothingConfig):
        raise ConfigError(
            f"config must be a SmoothingConfig, got {type(config).__name__}: SmoothingConfig(momentum=...)"
        )
    return config


def check_probability(name: str, value: object) -> float:
    """Return `value` as a float, or raise if it is not a number in [0, 1]."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(
            f"{name} must be a number in [0, 1], got {value!r}: pass a float such as 0.99", fields=(name,)
        )
    if math.isnan(value) or not 0.0 <= value <= 1.0:
        raise ConfigError(
            f"{name} must be in [0, 1], got {value!r}: it is a fraction, 0 follows the student fully", fields=(name,)
        )
    return float(value)


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, got {value!r}", fields=(name,))


def effective_momentum(momentum: float, preserve_probability: float) -> float:
    """m_eff = 1 − (1 − p)(1 − m), to 12 decimals, so that equal ones are equal in spite of float arithmetic.

    >>> effective_momentum(0.99, 0.7)
    0.997
    """
    return round(1.0 - (1.0 - preserve_probability) * (1.0 - momentum), 12)


@dataclass(frozen=True, kw_only=True)
class SmoothingConfig:
    """How the teacher follows the student. One rule covers no smoothing, TMA, SE and STS.

    For each unit i of the teacher, independently at every update:

        with probability p      θᵀᵢ stays as it is
        otherwise               θᵀᵢ ← m·θᵀᵢ + (1 − m)·θˢᵢ

    p = 0 is the temporal moving average (TMA), m = 0 the spatial ensemble (SE), both 0 no smoothing at all.
    """

    momentum: float = free()
    """m, the weight of the teacher's old value in the moving average of an updated unit."""
    preserve_probability: float = free()
    """p, the probability that a unit is left as it is."""
    granularity: Granularity = free("layer")
    """A unit: a parameter tensor (layer), all tensors of a module, an index of dim 0 (channel), a weight (neuron)."""
    buffers: Buffers = "copy"
    """Buffers are copied from the student, smoothed like parameters (float ones), or kept as the teacher's own."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "momentum", check_probability("momentum", self.momentum))
        p = check_probability("preserve_probability", self.preserve_probability)
        object.__setattr__(self, "preserve_probability", p)
        _check_choice("granularity", self.granularity, get_args(Granularity))
        _check_choice("buffers", self.buffers, get_args(Buffers))
        if self.preserve_probability == 1.0:
            message = (
                "preserve_probability=1 freezes the teacher: the temporal moving average is preserve_probability=0"
            )
            warnings.warn(message, UserWarning, stacklevel=3)

    @property
    def effective_momentum(self) -> float:
        """The momentum of the moving average that follows the student as fast in expectation."""
        return effective_momentum(self.momentum, self.preserve_probability)

    def matched_moving_average(self) -> "SmoothingConfig":
        """The TMA control of this config: the same expected pull, with no spatial part."""
        return replace(self, momentum=self.effective_momentum, preserve_probability=0.0)


def no_smoothing(*, buffers: Buffers = "copy") -> SmoothingConfig:
    """The teacher is a copy of the student."""
    return SmoothingConfig(momentum=0.0, preserve_probability=0.0, buffers=buffers)


def temporal_moving_average(momentum: float, *, buffers: Buffers = "copy") -> SmoothingConfig:
    """TMA, the usual exponential moving average."""
    return SmoothingConfig(momentum=momentum, preserve_probability=0.0, buffers=buffers)


def spatial_ensemble(
    preserve_probability: float, *, granularity: Granularity = "layer", buffers: Buffers = "copy"
) -> SmoothingConfig:
    """SE: a random fragment of the teacher is replaced by the student's."""
    return SmoothingConfig(
        momentum=0.0, preserve_probability=preserve_probability, granularity=granularity, buffers=buffers
    )


def spatial_temporal_smoothing(
    momentum: float, preserve_probability: float, *, granularity: Granularity = "layer", buffers: Buffers = "copy"
) -> SmoothingConfig:
    """STS: a random fragment of the teacher takes a step of a moving average."""
    return SmoothingConfig(
        momentum=momentum, preserve_probability=preserve_probability, granularity=granularity, buffers=buffers
    )


# An STS teacher is, for a given student, the moving average TMA(m_eff) plus noise of a known size. With a = 1 − m,
# q = 1 − p, μ the teacher's mean over all masks and d = θˢ − μ before an update:
#
#     μ' = μ + q·a·d                              exactly TMA(m_eff), m_eff = 1 − q·a
#     V' = (1 − 2qa + qa²)·V + q(1 − q)·a²·d²     variance of a unit around μ
#
# for every granularity: it decides which weights share their noise, not how large it is. Derived in docs/theory.md.


def noise_std(config: SmoothingConfig) -> float:
    """√(p(1 − m)/(1 + m)): where std/|d| of a unit settles while the student moves steadily.

    .0593 for the paper's BYOL (m = .99, p = .7), .0158 for its MoCo and FixMatch (.999, .5), .95 for SE with p = .9.
    0 for a frozen teacher (p = 1), which no mask moves.
    """
    m, p = config.momentum, config.preserve_probability
    return 0.0 if p == 1.0 else math.sqrt(p * (1.0 - m) / (1.0 + m))


def next_noise_variance(
    variance: float, squared_distance: float, config: SmoothingConfig, *, momentum: float | None = None
) -> float:
    """V after an update, from V and d² before it; `momentum` takes the place of the config's, as in a schedule.

    Both may be sums over many weights. Start at 0, the variance of a teacher that is a copy of its student, and take
    d² from the student and a teacher by `config.matched_moving_average()`, which is μ.
    """
    a = 1.0 - (config.momentum if momentum is None else momentum)
    q = 1.0 - config.preserve_probability
    return (1.0 - 2.0 * q * a + q * a * a) * variance + q * (1.0 - q) * a * a * squared_distance
