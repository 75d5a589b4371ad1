"""The first lines of a run: what will happen, where and, if that is known, for how long."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sts_pipelines.catalog.registry import Entry
    from sts_pipelines.config.cluster import ClusterConfig
    from sts_pipelines.config.pipeline import ComparisonConfig, PipelineConfig


def introduce(config: "PipelineConfig | ComparisonConfig", entry: "Entry | None") -> str:
    """Short lines; `entry` is that of the catalog if the config is as it stands there."""
    from sts_methods import method_record
    from sts_pipelines.config.kinds import base_of
    from sts_pipelines.config.pipeline import ComparisonConfig

    pipeline = base_of(config)
    training, evaluation = pipeline.training, pipeline.evaluation
    record = method_record(training.method)
    name = record.name if record else type(training.method).__name__
    length = f"{training.epochs} epochs" if training.steps is None else f"{training.steps} steps"
    variants = config.variants if isinstance(config, ComparisonConfig) else ()
    times = f", {len(variants)} times ({', '.join(variants)})" if variants else ""
    measured = f"{', '.join(evaluation.after_training)} of {', '.join(evaluation.networks)}"
    lines = [
        f"{pipeline.name}: trains {name} on {training.data.dataset} for {length}{times}",
        *([f"then measures {measured}"] if evaluation.after_training else []),
        f"{_place(pipeline.cluster)}{_duration(entry)}",
        f"in {config.folder.absolute()}",
    ]
    return "\n  ".join(lines)


def _place(cluster: "ClusterConfig") -> str:
    if cluster.num_workers == 0:
        return "in this process, without Ray"
    device = "GPU" if cluster.use_gpu else "CPU"
    workers = f"by {cluster.num_workers} Ray worker{'s' * (cluster.num_workers > 1)} on {device}s"
    return workers + (" of this machine" if cluster.address is None else f" of the cluster {cluster.address}")


def _duration(entry: "Entry | None") -> str:
    """How long it took where it was measured, and how long it may take where it was not."""
    if entry is not None and entry.is_estimated:
        return f"\n  takes {entry.hours.replace(' est.', '')} by estimate, on A100 / on RTX 2080 Ti"
    if entry is None or not entry.hours.replace(".", "", 1).isdigit():
        return ""
    hours = float(entry.hours)
    time = f"{60 * hours:.0f} minutes" if hours < 2 else f"{hours:g} hours"
    return f"; took about {time} on {entry.hardware}"
