"""Linear evaluation of a run's backbones."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sts_eval import (
    LinearProbeConfig,
    LinearProbeResult,
    evaluation_called,
    image_folder,
    linear_probe,
    linear_probes,
)
from sts_methods import dataset_record
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.config.plain import to_dict
from sts_pipelines.evaluation.record import Entries, EvaluationRecord, register_evaluation
from sts_pipelines.evaluation.run import EvaluatedRun
from sts_pipelines.evaluation.settings import settings_of


def measure(run: EvaluatedRun, networks: Sequence[str]) -> Entries:
    """The probes' accuracies, last and best."""
    return [entry for network, probe in probes_of(run, networks).items() for entry in probe.entries(network)]


def probes_of(run: EvaluatedRun, networks: Sequence[str]) -> dict[str, LinearProbeResult]:
    """The linear classifiers; trained by SGD they are kept in the run folder, and resume from there.

    Random crops are read once for all networks.
    """
    config, missing = run.config.linear, [network for network in networks if network not in run.probes]
    settings = settings_of(RECORD.name, run.pipeline)
    states = {name: run.results / f".linear-{name}-{settings}.pt" for name in missing if config.solver == "sgd"}
    if missing and config.augment:
        backbones = {network: run.backbone(network) for network in missing}
        common: dict[str, Any] = {"features": run.config.features, "cache": run.cache, "device": run.device}
        run.probes |= linear_probes(*_images(run), config, backbones=backbones, state_files=states, **common)
    for name in () if config.augment else missing:
        state = states.get(name)
        run.probes[name] = linear_probe(*run.features(name), config, state_file=state, device=run.device)
    return {network: run.probes[network] for network in networks}


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
    EvaluationRecord(
        about=evaluation_called("linear"), measure=measure, settings=settings, together=True, in_training=in_training
    )
)
