"""The experiments of the paper by name, as the command `sts`. See README.md."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sts_pipelines.evaluation.record import EvaluationRecord, register_evaluation

__version__ = "0.1.0"

__all__ = ["EvaluationRecord", "register_evaluation"]


def __getattr__(name: str) -> Any:
    """What brings torch along is imported when it is asked for: `sts list` does without."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sts_pipelines.evaluation import record

    return getattr(record, name)
