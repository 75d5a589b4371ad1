"""Which results a run holds already, by the settings they were measured under."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from sts_core.distributed import broadcast_object, rank
from sts_core.fields import outcome_relevant
from sts_eval import (
    RunResults,
    add_entries,
    read_results,
    write_results,
)
from sts_eval.detection import DetectionConfig
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.config.plain import digest, to_dict

Entries = list[dict[str, Any]]


def data_of(pipeline: PipelineConfig) -> dict[str, Any]:
    """The images that networks are evaluated on, and the type of the numbers in which they see them."""
    data = pipeline.training.data
    images = {"dataset": data.dataset, "root": data.root, "image_size": data.image_size}
    return images | {"precision": pipeline.evaluation.features.precision}


def settings_of(evaluation: str, pipeline: PipelineConfig) -> str:
    """A digest of what the numbers of an evaluation depend on besides the networks."""
    config = pipeline.evaluation
    if evaluation == "voc":
        return digest({"evaluation": "voc", "trials": config.voc_trials, **detection_settings(config.voc)})
    depends: dict[str, Any] = {"evaluation": evaluation, **data_of(pipeline)}
    if evaluation in ("linear", "imagenet-c"):
        depends["linear"] = to_dict(config.linear)
    if evaluation == "knn":
        depends["knn"] = to_dict(config.knn)
    if evaluation == "imagenet-c":
        depends |= {"released": config.imagenet_c_root, "severities": list(config.severities)}
    return digest(depends)


def detection_settings(config: DetectionConfig) -> dict[str, Any]:
    """What a detection's numbers depend on; the folder of the images counts, since others may lie elsewhere."""
    return outcome_relevant(config) | {"data_root": config.data_root}


def is_done(results: Path, evaluation: str, network: str, settings: str | None) -> bool:
    """Whether results.json holds this evaluation; rank 0 looks and tells the others, who must not disagree."""
    done = False
    if rank() == 0 and (results / "results.json").is_file():
        wanted = (evaluation, network, settings)
        entries = read_results(results).entries
        done = any((e["evaluation"], e["network"], e.get("settings")) == wanted for e in entries)
    return bool(broadcast_object(done))


def is_evaluated(results: Path, pipeline: PipelineConfig) -> bool:
    """Whether results.json holds everything that the config asks for."""
    measured = all(
        is_done(results, evaluation, network, settings_of(evaluation, pipeline))
        for evaluation in pipeline.evaluation.after_training
        for network in pipeline.evaluation.networks
    )
    return measured and (not pipeline.training.track_drift or is_done(results, "drift", "teacher", None))


def bring_forward(results: Path, pipeline: PipelineConfig) -> RunResults:
    """Put what the config asks for first in results.json, where tables look: numbers of other settings stay behind."""
    known = read_results(results)
    asked = {(name, settings_of(name, pipeline)) for name in pipeline.evaluation.after_training}
    order = sorted(known.entries, key=lambda entry: (entry["evaluation"], entry.get("settings")) not in asked)
    ordered = replace(known, entries=tuple(order))
    if ordered != known:
        write_results(results, ordered)
    return ordered


def write_entries(results: Path, entries: Entries, pipeline: PipelineConfig) -> None:
    """Add entries to results.json, on rank 0, with what they depend on; detection has data of its own."""
    if rank() == 0:
        results.mkdir(parents=True, exist_ok=True)
        data = {"data": data_of(pipeline)}
        known = [
            {**entry, **({} if entry["evaluation"] == "voc" else data)}
            | {"settings": settings_of(entry["evaluation"], pipeline)}
            for entry in entries
        ]
        add_entries(results, known, run=results.name)
