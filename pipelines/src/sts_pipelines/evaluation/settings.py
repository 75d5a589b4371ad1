"""Which results a run holds already, by the settings they were measured under."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sts_core import StateError
from sts_core.distributed import broadcast_object, rank
from sts_eval import RunResults, add_entries, read_results, write_results
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.config.plain import digest
from sts_pipelines.evaluation.record import Entries, data_of, record_of
from sts_pipelines.evaluation.run import EvaluatedRun

SHOWN = "images_shown"
"""The field of an entry that names the images behind it."""
DRIFT = "drift"
"""What training records without being asked here."""


def settings_of(evaluation: str, pipeline: PipelineConfig) -> str:
    """A digest of what the numbers of an evaluation depend on besides the networks."""
    return digest(record_of(evaluation).depends_on(pipeline))


def is_done(results: Path, evaluation: str, network: str, settings: str | None) -> bool:
    """Whether results.json holds this evaluation; rank 0 looks and tells the others, who must not disagree."""
    done = False
    if rank() == 0 and (results / "results.json").is_file():
        wanted = (evaluation, network, settings)
        entries = _entries(results)
        done = any((e["evaluation"], e["network"], e.get("settings")) == wanted for e in entries)
    return bool(broadcast_object(done))


def _entries(results: Path) -> Sequence[Mapping[str, Any]]:
    """What results.json holds; one that cannot be read steps aside for what is then measured again."""
    try:
        return read_results(results).entries
    except StateError:
        file = results / "results.json"
        aside = file.replace(file.with_name("results.damaged.json"))
        told = f"{file} is damaged: it is now {aside.name}, and what it held is measured again"
        warnings.warn(told, UserWarning, stacklevel=2)
        return ()


def is_evaluated(results: Path, pipeline: PipelineConfig) -> bool:
    """Whether results.json holds everything that the config asks for."""
    measured = all(
        is_done(results, evaluation, network, settings_of(evaluation, pipeline))
        for evaluation in pipeline.evaluation.after_training
        for network in record_of(evaluation).networks_of(pipeline)
    )
    return measured and (not pipeline.training.track_drift or is_done(results, DRIFT, "teacher", None))


def prefer_asked(results: Path, pipeline: PipelineConfig) -> RunResults:
    """Note in results.json that tables are to show the numbers that the config asks for, and not those before."""
    known = read_results(results)
    asked = {(name, settings_of(name, pipeline)) for name in pipeline.evaluation.after_training}
    preferred = known.preferring(lambda entry: (entry["evaluation"], entry.get("settings")) in asked)
    if preferred != known:
        write_results(results, preferred)
    return preferred


def write_entries(run: EvaluatedRun, results: Path, entries: Entries) -> None:
    """Add entries to results.json, on rank 0, with the images and the settings that they depend on."""
    if rank() == 0:
        results.mkdir(parents=True, exist_ok=True)
        known = []
        for entry in entries:
            shown = record_of(entry["evaluation"]).shows_dataset
            data = {"data": data_of(run.pipeline), SHOWN: run.images} if shown else {}
            known.append({**entry, **data, "settings": settings_of(entry["evaluation"], run.pipeline)})
        add_entries(results, known, run=results.name)


def images_of(results: Path, pipeline: PipelineConfig) -> str | None:
    """The fingerprint of the images that some result was measured on which the config asks for; None if there is none.

    One that cannot be read is measured again, and that in results of earlier versions is not known.
    """
    try:
        entries = read_results(results).entries if (results / "results.json").is_file() else ()
    except StateError:
        return None
    wanted = {(name, settings_of(name, pipeline)) for name in pipeline.evaluation.after_training}
    return next((e[SHOWN] for e in entries if SHOWN in e and (e["evaluation"], e.get("settings")) in wanted), None)
