"""Linear evaluation of a run's backbones."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sts_eval import LinearProbeConfig, LinearProbeResult, evaluation_called, image_folder, linear_probe
from sts_methods import dataset_record
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.config.plain import to_dict
from sts_pipelines.evaluation.record import Entries, EvaluationRecord, register_evaluation
from sts_pipelines.evaluation.run import EvaluatedRun
from sts_pipelines.evaluation.settings import settings_of


def measure(run: EvaluatedRun, networks: Sequence[str]) -> Entries:
    """The probe's accuracies, last and best."""
    return [entry for network in networks for entry in probe_of(run, network).entries(network)]


def probe_of(run: EvaluatedRun, network: str) -> LinearProbeResult:
    """The linear classifier; trained by SGD it is kept in the run folder, and resumes from there."""
    if network not in run.probes:
        config = run.config.linear
        state = run.results / f".linear-{network}-{settings_of(RECORD.name, run.pipeline)}.pt"
        train, test = _images(run) if config.augment else run.features(network)
        run.probes[network] = linear_probe(
            train,
            test,
            config,
            backbone=run.backbone(network) if config.augment else None,
            features=run.config.features,
            cache=run.cache,
            state_file=state if config.solver == "sgd" else None,
            device=run.device,
        )
    return run.probes[network]


def _images(run: EvaluatedRun) -> tuple[Any, Any]:
    """Images for random crops: whole ones from files, the test's view of training images that are in memory."""
    data = run.pipeline.training.data
    train, test = run.data
    if dataset_record(data.dataset).takes_layout:
        train = train.whole()
    elif dataset_record(data.dataset).class_folders and data.root is not None:
        root = Path(data.root).expanduser() / "train"
        train = image_folder(root, image_size=None, skip_unreadable=data.on_error == "skip")
    return train, test


def settings(pipeline: PipelineConfig) -> dict[str, Any]:
    """The protocol."""
    return {"linear": to_dict(pipeline.evaluation.linear)}


def in_training(pipeline: PipelineConfig, network: str, images: Any) -> Callable[[Any], float]:
    """Top-1 of ridge regression, which is solved at once: for the curve, not for tables."""
    config = LinearProbeConfig(solver="ridge", regularisations=(1e-2,), allow_missing_classes=True)

    def value(method: Any) -> float:
        backbone = method.backbone(network)
        train, test = images.features(backbone)
        return linear_probe(train, test, config, device=next(backbone.parameters()).device).last[1]

    return value


RECORD = register_evaluation(
    EvaluationRecord(about=evaluation_called("linear"), measure=measure, settings=settings, in_training=in_training)
)
