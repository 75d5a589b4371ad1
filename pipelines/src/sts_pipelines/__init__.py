"""The experiments of the paper by name, as the command `sts`. See README.md."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sts_pipelines.catalog.registry import named
    from sts_pipelines.config.pipeline import (
        ClusterConfig,
        ComparisonConfig,
        EvaluationConfig,
        GridConfig,
        PipelineConfig,
        SweepConfig,
        TrackingConfig,
    )
    from sts_pipelines.evaluation.record import EvaluationRecord, register_evaluation

__version__ = "0.1.0"

__all__ = [
    "ClusterConfig",
    "ComparisonConfig",
    "EvaluationConfig",
    "EvaluationRecord",
    "GridConfig",
    "PipelineConfig",
    "SweepConfig",
    "TrackingConfig",
    "named",
    "register_evaluation",
]

_HOMES = {
    "named": "sts_pipelines.catalog.registry",
    "EvaluationRecord": "sts_pipelines.evaluation.record",
    "register_evaluation": "sts_pipelines.evaluation.record",
}


def __getattr__(name: str) -> Any:
    """What brings torch along is imported when it is asked for: `sts list` does without."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES.get(name, "sts_pipelines.config.pipeline")), name)
