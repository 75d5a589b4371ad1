"""Nearest-neighbour evaluation of a run's backbones."""

from collections.abc import Callable, Sequence
from typing import Any

from sts_eval import evaluation_called, nearest_neighbours
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.config.plain import to_dict
from sts_pipelines.evaluation.record import Entries, EvaluationRecord, register_evaluation
from sts_pipelines.evaluation.run import EvaluatedRun


def measure(run: EvaluatedRun, networks: Sequence[str]) -> Entries:
    """The votes of every k and temperature."""
    results = {name: nearest_neighbours(*run.features(name), run.config.knn, device=run.device) for name in networks}
    return [entry for network, result in results.items() for entry in result.entries(network)]


def in_training(pipeline: PipelineConfig, network: str, images: Any) -> Callable[[Any], float]:
    """Top-1 of the first vote."""
    config = pipeline.evaluation.knn

    def value(method: Any) -> float:
        backbone = method.backbone(network)
        train, test = images.features(backbone)
        result = nearest_neighbours(train, test, config, device=next(backbone.parameters()).device)
        return result.top1(config.ks[0], config.temperatures[0])

    return value


register_evaluation(
    EvaluationRecord(
        about=evaluation_called("knn"),
        measure=measure,
        settings=lambda pipeline: {"knn": to_dict(pipeline.evaluation.knn)},
        in_training=in_training,
    )
)
