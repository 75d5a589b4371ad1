"""The kinds of pipelines: one training, a comparison of several, a sweep over many."""

from typing import Any

from sts_pipelines.config.pipeline import ComparisonConfig, PipelineConfig
from sts_pipelines.config.plain import to_dict
from sts_pipelines.config.sections import kind_of
from sts_pipelines.config.sweep import SweepConfig

AnyPipeline = PipelineConfig | ComparisonConfig | SweepConfig


def base_of(config: AnyPipeline) -> PipelineConfig:
    """The pipeline that a comparison or a sweep varies, or the pipeline itself."""
    return config if isinstance(config, PipelineConfig) else config.pipeline


def plain_of(config: AnyPipeline) -> dict[str, Any]:
    """The plain form of a config with its kind, as files hold it."""
    return {"kind": kind_of(type(config))} | to_dict(config)
