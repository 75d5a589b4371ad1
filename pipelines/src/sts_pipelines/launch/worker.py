"""What every worker does: train, save, evaluate."""

import contextlib
import json
import logging
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import torch

from sts_core import Network, StateError, StsError
from sts_core.distributed import gather_objects, rank
from sts_core.files import is_uri, write_atomically
from sts_methods import LocalRuntime, RunListener, fit, verify_backbone
from sts_pipelines.errors import memory_told
from sts_pipelines.evaluation.bank import evaluate_bank
from sts_pipelines.evaluation.evaluator import evaluate_run, share_passes, shared_evaluations
from sts_pipelines.evaluation.in_training import InTraining, LabelledImages, observation_of
from sts_pipelines.launch.job import Job, run_lock, write_config
from sts_pipelines.launch.runtime import PreemptionNotice, RayReport, StorageCopy, build_runtime, worker_device
from sts_pipelines.launch.standstill import RayBoard, StandstillWatch
from sts_pipelines.launch.storage import mirror_of, up_to_date
from sts_pipelines.launch.warnings_log import warnings_noted


def train_job(job: Job, runtime: LocalRuntime, storage: StorageCopy, *, watch: StandstillWatch | None = None) -> None:
    """Train, save the backbones and evaluate: what every rank does for a job, in process or on Ray."""
    lock = run_lock(job.folder) if runtime.rank == 0 else contextlib.nullcontext()
    with lock, warnings_noted(job.folder), memory_told():
        if job.train:
            if runtime.rank == 0:
                _tell_of_damage(job.folder)
            observation = observation_of(job.pipeline)
            if observation is not None and watch is not None:
                observation = replace(observation, measure=watch.resting()(observation.measure))
            fit(job.pipeline.training, runtime, observation=observation)
            storage.share()
        else:
            storage.restore()
        with storage.kept():
            evaluate_run(job.folder, job.pipeline, device=runtime.device)
        if job.bank_folder is not None:
            results = [job.bank_folder / name for name in job.pipeline.training.bank] if storage.leads_machine else []
            with up_to_date(job.pipeline.cluster.storage_path, results):
                evaluate_bank(job.folder, job.pipeline, job.bank_folder, device=runtime.device)


def _tell_of_damage(folder: Path) -> None:
    """Warn of networks in a run folder that are not whole; `fit` saves all of them anew."""
    for network in get_args(Network):
        try:
            if any((folder / f"{network}.{kind}").exists() for kind in ("safetensors", "json")):
                verify_backbone(folder / network)
        except StateError:
            told = f"the {network} saved in {folder} is damaged: that of the newest checkpoint takes its place"
            warnings.warn(told, UserWarning, stacklevel=2)


def train_in_process(job: Job) -> None:
    """`train_job` in this process, without Ray."""
    storage = StorageCopy(mirror_of(job.pipeline.cluster.storage_path, job.folder))
    train_job(job, build_runtime(job, storage), storage)


def _train_on_ray(job: Job, *, metric: str | None) -> None:
    """`train_job` in a worker of Ray Train; `metric` is measured and reported with every checkpoint."""
    import ray.train

    if rank() == 0:
        write_config(job)  # this machine need not be the driver's
    leads_machine = ray.train.get_context().get_local_rank() == 0
    storage = StorageCopy(mirror_of(job.pipeline.cluster.storage_path, job.folder), leads_machine=leads_machine)
    ranking = None if metric is None else InTraining(job.pipeline, [metric], LabelledImages(job.pipeline))
    watch = _watch_of(job)
    measure = ranking if ranking is None or watch is None else watch.resting()(ranking)
    also: list[RunListener] = [RayReport(measure)]
    if job.pipeline.cluster.address is not None:  # a local cluster has nobody who would know
        also.append(PreemptionNotice(job.folder))
    runtime = build_runtime(job, storage, also=also, device=worker_device(), progress=False, watch=watch)
    train_job(job, runtime, storage, watch=watch)


def _watch_of(job: Job) -> StandstillWatch | None:
    """What ends workers that stop without dying, if the config wants that."""
    seconds = job.pipeline.cluster.stuck_after_seconds
    if seconds is None:
        return None
    board = RayBoard(str(job.folder))
    return StandstillWatch(board, machine=board.machine, seconds=seconds)


def evaluate_together(jobs: Sequence[Job], *, device: torch.device) -> None:
    """Show the images of an evaluation to several finished runs at once, where it is made for that."""
    several = len(jobs) > 1 and not any(job.train or is_uri(job.pipeline.cluster.storage_path) for job in jobs)
    if several and shared_evaluations([job.pipeline for job in jobs]):
        with contextlib.ExitStack() as locks:
            for folder in sorted({job.folder for job in jobs}) if rank() == 0 else ():
                locks.enter_context(run_lock(folder))
            share_passes([(job.folder, job.pipeline) for job in jobs], device=device)


def worker(config: dict[str, Any]) -> dict[str, Any]:
    """What every Ray Train worker runs; returns an error that a restart would only meet again.

    A worker that raises makes Ray restart the group, which is right for a lost machine and pointless for a wrong path
    or a diverged loss. So such an error is noted in the run folder, and the restarted group hands it over and ends.
    """
    logging.getLogger().setLevel(logging.WARNING)  # Ray logs a line for every report otherwise
    note = Path(config["note"])
    noted = _first_of_all_ranks(note.read_text() if note.exists() else None)
    if noted is not None:
        return dict(json.loads(noted))
    try:
        jobs = [Job.from_plain(plain) for plain in config["jobs"]]
        evaluate_together(jobs, device=worker_device())
        for job in jobs:
            _train_on_ray(job, metric=config["measure"])
    except StsError as error:
        write_atomically(note, json.dumps({"error": str(error)}))
        raise
    return {}


def _first_of_all_ranks(text: str | None) -> str | None:
    """The first text that any rank has: those on other machines may not see the note, and must end as well."""
    return next((one for one in gather_objects(text) if one is not None), None)
