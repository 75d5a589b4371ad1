"""Training pipelines by name: in this process, or by a group of Ray Train workers that survives being killed."""

import json
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from sts_core import StsError
from sts_core.files import is_uri
from sts_methods import default_device
from sts_pipelines.config.cluster import ClusterConfig
from sts_pipelines.errors import RunError, WorkersError, first_line
from sts_pipelines.evaluation.settings import prefer_asked
from sts_pipelines.launch.cluster import check_gpus, ray_cluster
from sts_pipelines.launch.job import Job, is_complete, write_config
from sts_pipelines.launch.progress import Watcher
from sts_pipelines.launch.requests import answered_in
from sts_pipelines.launch.stages import StageTeller
from sts_pipelines.launch.storage import mirror_of, uri_of
from sts_pipelines.launch.trackers import check_installed
from sts_pipelines.launch.worker import evaluate_together, train_in_process, worker


def launch(jobs: Sequence[Job], *, name: str, folder: Path) -> None:
    """Train and evaluate all jobs, one after the other, by one group of workers; those that fail leave the others.

    Called again after any interruption it resumes from the newest checkpoints; finished jobs return at once.

    Args:
        jobs: What to run. All share one `cluster` section, and either all train or all only evaluate.
        name: What Ray calls the run.
        folder: Where the workers leave a note of an error that a restart would meet again: that of the only job, or
            the one above those of all jobs.

    Raises:
        StsError: That of the only job, or a `RunError` that names all that failed, after the others are done.
    """
    cluster = jobs[0].pipeline.cluster
    if jobs[0].train:
        check_installed(jobs[0].pipeline.tracking)
    folders = {job.label: job.folder for job in jobs}
    with answered_in(list(folders.values())), StageTeller(folders) as teller:
        if cluster.num_workers == 0:
            evaluate_together(jobs, device=default_device())
            train = partial(_train_in_process, say=teller.say)
            _raise_failed([failed for job in jobs for failed in attempt([job], train)], jobs)
        elif all(is_complete(job) for job in jobs):  # not worth the start of a cluster
            for job in jobs:
                if job.pipeline.evaluation.after_training:
                    prefer_asked(job.folder, job.pipeline)
        else:
            _launch_on_ray(jobs, name=name, folder=folder, say=teller.say)


def check_machine(jobs: Sequence[Job]) -> None:
    """Refuse workers that want GPUs which this machine has not; runs that are complete need none."""
    cluster = jobs[0].pipeline.cluster
    if cluster.num_workers and not all(is_complete(job) for job in jobs):
        check_gpus(cluster)


def _launch_on_ray(jobs: Sequence[Job], *, name: str, folder: Path, say: Callable[[str], None]) -> None:
    cluster = jobs[0].pipeline.cluster
    num_cpus = cluster.num_workers * cluster.cpus_per_worker
    with ray_cluster(cluster, num_cpus=num_cpus), Watcher([job.folder for job in jobs], say=say):
        alone = cluster.address is None
        train = partial(train_on_ray, name=name, folder=folder, max_failures=cluster.max_failures, alone=alone)
        failed = attempt(jobs, train)
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
        return [failed for job in jobs if not is_complete(job) for failed in attempt([job], train)]
    return []


def _train_in_process(jobs: Sequence[Job], *, say: Callable[[str], None]) -> None:
    for job in jobs:
        write_config(job)
        if job.train:
            say(f"{job.label}: {_place()}")
        train_in_process(job)


def _place() -> str:
    """Where training in process happens, since the choice is ours."""
    device, threads = default_device(), torch.get_num_threads()
    by = f"{threads} CPU thread{'s' * (threads > 1)}" if device.type == "cpu" else str(device)
    return f"training in this process on {by}, without Ray"


def _raise_failed(failed: Sequence[Failed], jobs: Sequence[Job]) -> None:
    """The error of a job that is alone, or one that names all that failed."""
    if failed and len(jobs) == 1:
        raise failed[0][1]
    if failed:
        names = ", ".join(f"{job.label} ({error})" for job, error in failed)
        raise RunError(f"{len(failed)} of {len(jobs)} runs failed: {names}; the same command tries them again")


def train_on_ray(
    jobs: Sequence[Job],
    *,
    name: str,
    folder: Path,
    max_failures: int,
    callbacks: Sequence[Any] = (),
    measure: str | None = None,
    alone: bool = False,
) -> None:
    """Run the jobs in one Ray Train worker group on the cluster that this process is connected to.

    `measure` names a metric, such as knn/teacher/top1, to be reported to Ray with every checkpoint. `alone` is for a
    cluster that ends with the run.
    """
    import ray.train
    import ray.train.torch

    cluster = jobs[0].pipeline.cluster
    for job in jobs:
        write_config(job)
    note = folder / f".failed-{uuid.uuid4().hex}.json"
    config = {"jobs": [job.to_plain() for job in jobs], "note": str(note), "measure": measure}
    trainer = trainer_class(alone=alone)(
        worker,
        train_loop_config=config,
        scaling_config=scaling(cluster),
        run_config=ray.train.RunConfig(
            name=name,
            storage_path=_storage_of(folder, cluster),
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
        raise RunError(f"Ray stopped the run ({first_line(error)}): rerun the same command to resume") from error
    if result.return_value and "error" in result.return_value:
        note.unlink(missing_ok=True)
        raise RunError(result.return_value["error"])


def trainer_class(*, alone: bool) -> Any:
    """TorchTrainer without the processes of Ray Data, and of what would free resources of a cluster that stays."""
    from ray.train.torch import TorchTrainer

    unneeded = {"DatasetsCallback", *(["PlacementGroupCleanerCallback"] if alone else [])}

    class Trainer(TorchTrainer):  # type: ignore[misc]  # Ray has no types
        def _create_default_callbacks(self) -> list[Any]:
            return [one for one in super()._create_default_callbacks() if type(one).__name__ not in unneeded]

    return Trainer


def _storage_of(folder: Path, cluster: ClusterConfig) -> str:
    """Where Ray is to put what it writes of the run in `folder`: into that folder."""
    if is_uri(cluster.storage_path):
        return uri_of(cluster.storage_path, folder.parent) or cluster.storage_path
    return str(folder.parent)


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


def _cause(error: BaseException) -> str:
    """The last line of the innermost exception."""
    failures = getattr(error, "worker_failures", None) or {}
    inner = next(iter(failures.values()), error)
    lines = [line for line in str(inner).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(inner).__name__
