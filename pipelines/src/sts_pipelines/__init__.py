"""The experiments of the paper by name, as the command `sts`. See README.md."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sts_pipelines.catalog.registry import named
    from sts_pipelines.config.cluster import ClusterConfig
    from sts_pipelines.config.evaluation import EvaluationConfig
    from sts_pipelines.config.pipeline import ComparisonConfig, PipelineConfig, TrackingConfig
    from sts_pipelines.config.sweep import GridConfig, SweepConfig
    from sts_pipelines.evaluation.record import EvaluationRecord, register_evaluation

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
    **dict.fromkeys(("ComparisonConfig", "PipelineConfig", "TrackingConfig"), "sts_pipelines.config.pipeline"),
    **dict.fromkeys(("GridConfig", "SweepConfig"), "sts_pipelines.config.sweep"),
    "ClusterConfig": "sts_pipelines.config.cluster",
    "EvaluationConfig": "sts_pipelines.config.evaluation",
    "named": "sts_pipelines.catalog.registry",
    "EvaluationRecord": "sts_pipelines.evaluation.record",
    "register_evaluation": "sts_pipelines.evaluation.record",
}


def __getattr__(name: str) -> Any:
    """What brings torch along is imported when it is asked for: `sts list` does without."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
