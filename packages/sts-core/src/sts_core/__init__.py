"""TMA, SE and STS teacher updates for any student-teacher loop. See README.md."""

from sts_core import distributed, doctor, fields, files, masks, weights
from sts_core.attachment import Attachment
from sts_core.averages.posthoc import Snapshot, Synthesis, synthesize
from sts_core.averages.record import BankRecord, averages_and_fragments
from sts_core.bank import TeacherBank
from sts_core.binding import Applied
from sts_core.config import (
    Buffers,
    Granularity,
    Network,
    Precision,
    SmoothingConfig,
    effective_momentum,
    next_noise_variance,
    no_smoothing,
    noise_std,
    spatial_ensemble,
    spatial_temporal_smoothing,
    temporal_moving_average,
)
from sts_core.drift import fragment_age, output_drift, parameter_drift
from sts_core.errors import (
    CheckpointError,
    ConfigError,
    PairingError,
    RankMismatchError,
    StateError,
    StsError,
    SwapError,
)
from sts_core.pairing import make_teacher
from sts_core.schedules import (
    constant_momentum,
    cosine_momentum,
    half_life_momentum,
    interval_momentum,
    power_momentum,
    warmup_momentum,
)
from sts_core.smoother import Smoother

__version__ = "0.1.0"

__all__ = [
    "Applied", "Attachment", "BankRecord", "Buffers", "CheckpointError", "ConfigError", "Granularity", "Network",
    "PairingError", "Precision", "RankMismatchError", "Smoother", "SmoothingConfig", "Snapshot", "StateError",
    "StsError", "SwapError", "Synthesis", "TeacherBank", "averages_and_fragments", "constant_momentum",
    "cosine_momentum", "distributed", "doctor", "effective_momentum", "fields", "files", "fragment_age",
    "half_life_momentum", "interval_momentum", "make_teacher", "masks", "next_noise_variance", "no_smoothing",
    "noise_std", "output_drift", "parameter_drift", "power_momentum", "spatial_ensemble", "spatial_temporal_smoothing",
    "synthesize", "temporal_moving_average", "warmup_momentum", "weights",
]  # fmt: skip
