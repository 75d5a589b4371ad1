"""VOC: average precision of detectors that start from a run's backbones."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from sts_core.fields import outcome_relevant
from sts_eval import DetectionConfig, detection_transfer, evaluation_called, require_backend
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.config.plain import digest
from sts_pipelines.evaluation.record import Entries, EvaluationRecord, register_evaluation
from sts_pipelines.evaluation.run import EvaluatedRun


def measure(run: EvaluatedRun, networks: Sequence[str]) -> Entries:
    """The mean over fine-tunings with one seed after the other; all ranks train together."""
    entries = []
    for network in networks:
        seeds = range(run.config.voc.seed, run.config.voc.seed + run.config.voc_trials)
        trials = [_detection(run, network, replace(run.config.voc, seed=seed)) for seed in seeds]
        entries += [_mean_of_trials(same) for same in zip(*trials, strict=True)]
    return entries


def _detection(run: EvaluatedRun, network: str, config: DetectionConfig) -> Entries:
    folder = run.results / f"voc-{network}-{digest(_decisive(config))}"
    result = detection_transfer(run.backbone(network), config, folder=folder, device=run.device)
    return result.entries(network=network)


def _mean_of_trials(entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One entry for the same number of several trials, whose spread stays in it."""
    values = [entry["value"] for entry in entries]
    common = {name: value for name, value in entries[0].items() if name != "seed"}
    return {**common, "value": fmean(values), "trials": values}


def _decisive(config: DetectionConfig) -> dict[str, Any]:
    """What the numbers depend on; the folder of the images counts, since others may lie elsewhere."""
    return outcome_relevant(config) | {"data_root": config.data_root}


def settings(pipeline: PipelineConfig) -> dict[str, Any]:
    """All of the config but what only says how it is executed."""
    return {"trials": pipeline.evaluation.voc_trials, **_decisive(pipeline.evaluation.voc)}


register_evaluation(
    EvaluationRecord(
        about=evaluation_called("voc"),
        measure=measure,
        settings=settings,
        shows_dataset=False,
        folder=lambda config: config.voc.data_root,
        folder_flag="--evaluation.voc.data-root",
        check=lambda config: require_backend(config.voc.backend),
    )
)
