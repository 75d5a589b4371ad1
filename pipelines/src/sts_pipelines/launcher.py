"""Training pipelines by name: in this process, or by a group of Ray Train workers that survives being killed."""

import contextlib
import fcntl
import json
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from sts_core.errors import StsError
from sts_eval.parallel import rank
from sts_eval.results import write_atomically
from sts_methods.checkpoint import CheckpointStore
from sts_methods.runtime import default_device
from sts_methods.training import fit
from sts_pipelines.bank_evaluation import evaluate_bank
from sts_pipelines.cluster import ray_cluster
from sts_pipelines.errors import RunError, UsageError, WorkersError, first_line
from sts_pipelines.evaluation import bring_forward, evaluate_run, is_evaluated, measure_corruptions, measure_of
from sts_pipelines.pipeline import ClusterConfig, PipelineConfig, plain_of
from sts_pipelines.process_runtime import ProcessRuntime
from sts_pipelines.progress import Watcher
from sts_pipelines.schema import from_dict, to_dict
from sts_pipelines.storage import is_uri, mirror_of
from sts_pipelines.tracking import build_trackers, check_installed
from sts_pipelines.yaml_text import write_yaml


@dataclass(frozen=True, kw_only=True)
class Job:
    """One pipeline and the folder that its run lives in."""

    label: str
    pipeline: PipelineConfig
    folder: Path
    bank_folder: Path | None = None
    """Where the results of the bank's teachers go, one folder for each, if there is a bank."""
    train: bool = True
    """False only evaluates what an earlier run has left."""

    def to_plain(self) -> dict[str, Any]:
        """Plain values, which is all that crosses to the workers."""
        bank = None if self.bank_folder is None else str(self.bank_folder)
        plain = {"label": self.label, "pipeline": to_dict(self.pipeline), "folder": str(self.folder)}
        return plain | {"bank_folder": bank, "train": self.train}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Job":
        return cls(
            label=plain["label"],
            pipeline=from_dict(PipelineConfig, plain["pipeline"]),
            folder=Path(plain["folder"]),
            bank_folder=None if plain["bank_folder"] is None else Path(plain["bank_folder"]),
            train=plain["train"],
        )


def launch(jobs: Sequence[Job], *, name: str, folder: Path) -> None:
    """Train and evaluate all jobs, one after the other, by one group of workers; those that fail leave the others.

    Called again after any interruption it goes on where the newest checkpoints are; finished jobs return at once.
    """
    cluster = jobs[0].pipeline.cluster
    if jobs[0].train:
        check_installed(jobs[0].pipeline.tracking)
    if cluster.num_workers == 0:
        share_corruptions(jobs, device=default_device())
        _raise_failed([failed for job in jobs for failed in attempt([job], _train_in_process)], jobs)
        return
    if all(_is_complete(job) for job in jobs):  # not worth the start of a cluster
        for job in jobs:
            if job.pipeline.evaluation.after_training:
                bring_forward(job.folder, job.pipeline)
        return
    num_cpus = cluster.num_workers * cluster.cpus_per_worker
    with ray_cluster(cluster, num_cpus=num_cpus), Watcher([job.folder for job in jobs]):
        failed = attempt(jobs, partial(train_on_ray, name=name, folder=folder, max_failures=cluster.max_failures))
        for job in jobs:  # the workers may have run elsewhere
            mirror = mirror_of(cluster.storage_path, job.folder)
            if mirror is not None:
                mirror.pull()
        _raise_failed(failed, jobs)  # before the cluster ends, so that its logs stay


Failed = tuple[Job, StsError]


def attempt(jobs: Sequence[Job], train: Callable[[Sequence[Job]], None]) -> list[Failed]:
    """`train` the jobs together and, if that fails, each unfinished one by itself: those that failed, and why."""
    try:
        train(jobs)
    except StsError as error:
        if len(jobs) == 1:
            return [(jobs[0], error)]
        return [failed for job in jobs if not _is_complete(job) for failed in attempt([job], train)]
    return []


def _train_in_process(jobs: Sequence[Job]) -> None:
    for job in jobs:
        write_config(job)
        train_job(job, ProcessRuntime(job.folder, **_surroundings(job)))


def _raise_failed(failed: Sequence[Failed], jobs: Sequence[Job]) -> None:
    """The error of a job that is alone, or one that names all that failed."""
    if failed and len(jobs) == 1:
        raise failed[0][1]
    if failed:
        names = ", ".join(f"{job.label} ({error})" for job, error in failed)
        raise RunError(f"{len(failed)} of {len(jobs)} runs failed: {names}; the same command tries them again")


def _is_complete(job: Job) -> bool:
    """Whether the run in this folder was trained to its end and holds every result that is asked for.

    The folder's name is a digest of all that decides the weights, so saved networks are those of this config, unless
    somebody has taken their checkpoint away to train the last steps again.
    """
    manifest = job.folder / "teacher.json"
    if job.bank_folder is not None or is_uri(job.pipeline.cluster.storage_path) or not manifest.is_file():
        return False
    newest = CheckpointStore(job.folder / "checkpoints").newest_intact()
    trained = newest is None or newest == json.loads(manifest.read_text())["step"]
    return trained and is_evaluated(job.folder, job.pipeline)


def _surroundings(job: Job) -> dict[str, Any]:
    """What a runtime is given besides its folder."""
    storage = mirror_of(job.pipeline.cluster.storage_path, job.folder)
    return {"label": job.label, "trackers": build_trackers(job.pipeline, job.folder), "mirror": storage}


def train_job(job: Job, runtime: ProcessRuntime) -> None:
    """Train, save the backbones and evaluate: what every rank does for a job, in process or on Ray."""
    with run_lock(job.folder) if runtime.rank == 0 else contextlib.nullcontext():
        if job.train:
            fit(job.pipeline.training, runtime)
            runtime.share()
        else:
            runtime.fetch()
        evaluate_run(job.folder, job.pipeline, device=runtime.device)
        if job.bank_folder is not None:
            evaluate_bank(job.folder, job.pipeline, job.bank_folder, device=runtime.device)
        if runtime.mirror is not None and runtime.rank == 0:
            runtime.mirror.push()


def share_corruptions(jobs: Sequence[Job], *, device: torch.device) -> None:
    """Where several finished runs are evaluated on ImageNet-C, each image is shown to all of them at once."""
    several = len(jobs) > 1 and not any(job.train or is_uri(job.pipeline.cluster.storage_path) for job in jobs)
    if several and all("imagenet-c" in job.pipeline.evaluation.after_training for job in jobs):
        with contextlib.ExitStack() as locks:
            for folder in sorted({job.folder for job in jobs}) if rank() == 0 else ():
                locks.enter_context(run_lock(folder))
            measure_corruptions([(job.folder, job.pipeline) for job in jobs], device=device)


def write_config(job: Job) -> None:
    """Leave the resolved config in the run folder, atomically; an evaluation leaves the one that is there."""
    if not job.train:
        return
    try:
        write_atomically(job.folder / "config.yaml", write_yaml(plain_of(job.pipeline)))
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"cannot write to {job.folder} ({reason}): free it, or set cluster.storage-path") from error


def train_on_ray(
    jobs: Sequence[Job],
    *,
    name: str,
    folder: Path,
    max_failures: int,
    callbacks: Sequence[Any] = (),
    measure: str | None = None,
) -> None:
    """Run the jobs in one Ray Train worker group on the cluster that this process is connected to.

    `measure` names a metric, such as knn/teacher/top1, to be reported to Ray with every checkpoint.
    """
    import ray.train
    import ray.train.torch

    cluster = jobs[0].pipeline.cluster
    for job in jobs:
        write_config(job)
    note = folder / f".failed-{uuid.uuid4().hex}.json"
    config = {"jobs": [job.to_plain() for job in jobs], "note": str(note), "measure": measure}
    trainer = ray.train.torch.TorchTrainer(
        worker,
        train_loop_config=config,
        scaling_config=scaling(cluster),
        run_config=ray.train.RunConfig(
            name=name,
            storage_path=cluster.storage_path if is_uri(cluster.storage_path) else str(folder.parent),
            callbacks=list(callbacks),
            failure_config=ray.train.FailureConfig(max_failures=max_failures),
        ),
    )
    try:
        result = trainer.fit()
    except ray.train.TrainingFailedError as error:
        if note.exists():
            raise RunError(_noted(note)) from error
        message = f"the workers of {name} failed more often than max_failures={cluster.max_failures} allows"
        raise WorkersError(f"{message}: {_cause(error)}") from error
    except ray.exceptions.RayError as error:
        raise RunError(f"Ray stopped the run ({first_line(error)}): the same command goes on") from error
    if result.return_value and "error" in result.return_value:
        note.unlink(missing_ok=True)
        raise RunError(result.return_value["error"])


def _noted(note: Path) -> str:
    """The error that a worker left behind, which is no longer needed then."""
    error: str = json.loads(note.read_text())["error"]
    note.unlink()
    return error


def scaling(cluster: ClusterConfig) -> Any:
    """Ray's description of the worker group."""
    import ray.train

    elastic = cluster.min_workers is not None and cluster.min_workers < cluster.num_workers
    resources: dict[str, float] = {"CPU": cluster.cpus_per_worker}
    if cluster.use_gpu:
        resources["GPU"] = 1
    return ray.train.ScalingConfig(
        num_workers=(cluster.min_workers, cluster.num_workers) if elastic else cluster.num_workers,
        use_gpu=cluster.use_gpu,
        resources_per_worker=resources,
    )


def worker(config: dict[str, Any]) -> dict[str, Any]:
    """What every Ray Train worker runs; returns an error that no restart can cure instead of raising it twice.

    A worker that raises makes Ray restart the group, which is right for a lost machine and pointless for a wrong path
    or a diverged loss. So such an error is noted in the run folder, and the restarted group hands it over and ends.
    """
    from sts_pipelines.ray_runtime import RayRuntime, worker_device

    logging.getLogger().setLevel(logging.WARNING)  # Ray logs a line for every report otherwise
    note = Path(config["note"])
    noted = _first_of_all_ranks(note.read_text() if note.exists() else None)
    if noted is not None:
        return dict(json.loads(noted))
    try:
        jobs = [Job.from_plain(plain) for plain in config["jobs"]]
        share_corruptions(jobs, device=worker_device())
        for job in jobs:
            measure = None if config["measure"] is None else measure_of(job.pipeline, config["measure"])
            train_job(job, RayRuntime(job.folder, **_surroundings(job), measure=measure))
    except StsError as error:
        write_atomically(note, json.dumps({"error": str(error)}))
        raise
    return {}


def _first_of_all_ranks(text: str | None) -> str | None:
    """The first text that any rank has: those on other machines may not see the note, and must end as well."""
    texts: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(texts, text)
    return next((one for one in texts if one is not None), None)


@contextlib.contextmanager
def run_lock(folder: Path, *, patience_seconds: float = 60.0) -> Iterator[None]:
    """Only one group of workers writes to a run folder; those of a killed driver need some seconds to vanish."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a") as file:
        deadline = time.monotonic() + patience_seconds
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    message = f"{folder} is being written to by another run: wait for it, or stop it first"
                    raise UsageError(message) from None
                time.sleep(0.2)
        yield


def _cause(error: BaseException) -> str:
    """The last line of the innermost exception."""
    failures = getattr(error, "worker_failures", None) or {}
    inner = next(iter(failures.values()), error)
    lines = [line for line in str(inner).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(inner).__name__
