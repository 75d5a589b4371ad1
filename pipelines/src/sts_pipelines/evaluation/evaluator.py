"""Measuring a finished run: both networks, every evaluation asked for, results added to its results.json.

All ranks call `evaluate_run` and share the work; rank 0 writes. An evaluation that is in results.json already, under
the same settings, is not repeated, so a killed run only does what is missing.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from sts_core.distributed import barrier, rank
from sts_eval import RunResults, add_entries, read_drift
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.errors import UsageError
from sts_pipelines.evaluation.record import EvaluationRecord, records_of
from sts_pipelines.evaluation.run import FEATURES, EvaluatedRun
from sts_pipelines.evaluation.settings import is_done, prefer_asked, settings_of, write_entries
from sts_pipelines.evaluation.stage import stage


def evaluate_run(
    folder: Path,
    pipeline: PipelineConfig,
    *,
    device: torch.device,
    teacher: str | None = None,
    results: Path | None = None,
) -> RunResults | None:
    """Do all evaluations of the config that results.json does not hold yet; the results on rank 0, None elsewhere.

    `teacher` names one of the bank's, whose results go to the folder `results`; the student has its own in the run's.
    """
    results = results or folder
    barrier()  # rank 0 has saved the networks when all ranks are here
    if not (folder / "teacher.safetensors").is_file():
        raise UsageError(f"{folder} has no finished networks: let sts run finish the training first")
    run = EvaluatedRun(folder, pipeline, device, teacher=teacher, results=results)
    for record in records_of(pipeline):
        _evaluate(run, record, record.networks_of(pipeline) if teacher is None else ("teacher",))
    if pipeline.training.track_drift and teacher is None and rank() == 0:  # the run's teacher, not one of the bank
        add_entries(results, read_drift(folder, epochs=None).entries(), run=results.name)
    barrier()
    if rank() == 0:
        for name in (FEATURES, *(record.scratch for record in records_of(pipeline) if record.scratch)):
            shutil.rmtree(results / name, ignore_errors=True)
    return prefer_asked(results, pipeline) if rank() == 0 and (results / "results.json").is_file() else None


def _evaluate(run: EvaluatedRun, record: EvaluationRecord, networks: Sequence[str]) -> None:
    """Measure those of `networks` that have no result yet."""
    missing = missing_networks(run, record, networks)
    for group in [missing] if record.together and missing else [[network] for network in missing]:
        names = " and the ".join("untrained network" if name == "untrained" else name for name in group)
        with stage(run.results, f"{record.name} of the {names}"):
            write_entries(run, run.results, record.measure(run, group))


def missing_networks(run: EvaluatedRun, record: EvaluationRecord, networks: Sequence[str]) -> list[str]:
    """The networks without a result under these settings."""
    settings = settings_of(record.name, run.pipeline)
    return [network for network in networks if not is_done(run.results, record.name, network, settings)]


def shared_evaluations(pipelines: Sequence[PipelineConfig]) -> list[EvaluationRecord]:
    """The evaluations that all pipelines ask for and that can measure several runs in one pass."""
    shared = [record for record in records_of(pipelines[0]) if record.share is not None]
    return [record for record in shared if all(record.name in p.evaluation.after_training for p in pipelines)]


def share_passes(runs: Sequence[tuple[Path, PipelineConfig]], *, device: torch.device) -> None:
    """Measure several runs in one pass over the images; `evaluate_run` finds the outcomes.

    Runs of other settings than the first are left to themselves.
    """
    for record in shared_evaluations([pipeline for _, pipeline in runs]):
        assert record.share is not None
        first = settings_of(record.name, runs[0][1])
        record.share([EvaluatedRun(f, p, device) for f, p in runs if settings_of(record.name, p) == first])
