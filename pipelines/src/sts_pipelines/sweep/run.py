"""Sweeps over (m, p, granularity) and other fields: Ray Tune decides what runs when, every trial is a Ray Train run.

A trial's folder is named by its m and p and is the run folder of an ordinary run. What a sweep has found is read from
these folders, never from Tune's memory: a killed sweep is resumed by giving the same command, and only trials without
results are run. That also lets a grid be extended, and does without restoring Tune's schedulers, which forget.
"""

import contextlib
import itertools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from sts_core import StsError
from sts_methods import TrainingConfig
from sts_pipelines.config.cluster import ClusterConfig
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.config.plain import digest, outcome_relevant, to_dict
from sts_pipelines.config.sections import digested_name
from sts_pipelines.config.storage_path import local_folder
from sts_pipelines.config.sweep import AXES, SweepConfig
from sts_pipelines.errors import RunError, UsageError, WorkersError, first_line
from sts_pipelines.evaluation.settings import is_evaluated, prefer_asked
from sts_pipelines.launch.cluster import TRIAL_CPUS, local_resources, ray_cluster
from sts_pipelines.launch.driver import attempt, launch, train_on_ray
from sts_pipelines.launch.job import Job
from sts_pipelines.launch.requests import answered_in
from sts_pipelines.launch.storage import up_to_date
from sts_pipelines.sweep.outcomes import (
    Outcome,
    applied_values,
    check_applied,
    forget_errors,
    is_finished,
    note_error,
    outcomes,
    value_in,
    write_outcomes,
)
from sts_pipelines.sweep.progress import TrialWatcher
from sts_pipelines.sweep.trials import Trial, controls, distinct, trials_of


def run_sweep(config: SweepConfig) -> list[Outcome]:
    """Run what is missing, then write table, CSV and report; fails at the end if a trial failed."""
    folder = sweep_folder(config)
    if config.sweep.search == "optuna":
        trials = _search(config, folder)
    else:
        trials = trials_of(config)
        _train(config, trials, folder)
    with _up_to_date(config, folder):
        for trial in trials:
            if (folder / trial.name / "results.json").is_file():
                prefer_asked(folder / trial.name, config.pipeline)
        found = outcomes(folder, trials, metric=config.sweep.metric)
        write_outcomes(found, folder, metric=config.sweep.metric)
    failed = [outcome for outcome in found if outcome.error]
    if failed:
        names = ", ".join(f"{outcome.trial.name} ({outcome.error})" for outcome in failed[:3])
        raise RunError(f"{len(failed)} of {len(found)} trials failed: {names}; the same command tries them again")
    return found


def _train(config: SweepConfig, trials: Sequence[Trial], folder: Path) -> None:
    """Run those of the trials that are missing."""
    if config.sweep.one_student:
        from sts_pipelines.sweep.one_student import train_one_student

        train_one_student(config, trials, folder)
        return
    with _up_to_date(config, folder):
        missing = _missing(config, trials, folder)
    print(f"{len(trials)} trials, {len(trials) - len(missing)} finished before: {folder}", flush=True)
    with TrialWatcher(folder, missing, metric=config.sweep.metric):
        if missing and config.pipeline.cluster.num_workers == 0:
            _one_after_the_other(config, missing, folder)
        elif missing:
            _tune(config, missing, folder)


def _up_to_date(config: SweepConfig, folder: Path) -> AbstractContextManager[None]:
    """In the body, what trials on other machines have found is in `folder`, or in that of one of them."""
    return up_to_date(config.pipeline.cluster.storage_path, [folder])


def _missing(config: SweepConfig, trials: Sequence[Trial], folder: Path) -> list[Trial]:
    searching = config.sweep.search != "grid"
    return [trial for trial in trials if not is_finished(folder / trial.name, config.pipeline, searching=searching)]


def _search(config: SweepConfig, folder: Path) -> list[Trial]:
    """Run what a killed search has left, then round after round of new points; all trials in the end."""
    from sts_pipelines.sweep.search import Search

    with _up_to_date(config, folder):
        search = Search(config, folder)

    def wanted() -> list[Trial]:
        added = controls(search.trials()) if config.sweep.with_control else ()
        return distinct([*search.trials(), *added])

    unfinished = search.num_left > 0 or _missing(config, wanted(), folder)
    with _cluster_of(config) if config.pipeline.cluster.num_workers and unfinished else contextlib.nullcontext():
        if new := search.trials():
            _train(config, new, folder)
        while search.num_left > 0:
            with _up_to_date(config, folder):
                new = search.more(_num_at_a_time(config))
            _train(config, new, folder)
        if config.sweep.with_control:
            _train(config, list(controls(search.trials())), folder)
    return wanted()


def sweep_folder(config: SweepConfig) -> Path:
    """Named by all that the trials share, so that a larger grid finds the trials that are there."""
    training = replace(config.pipeline.training, bank={})
    varied = {*AXES, *(digested_name(TrainingConfig, to_dict(training), name) for name in config.sweep.over)}
    varied |= {"seed"} if config.sweep.seeds else set()
    name = f"{config.pipeline.name}-{digest(outcome_relevant(training), ignore=varied)}"
    folder = local_folder(config.pipeline.cluster.storage_path, name)
    for parent in folder.parents:
        if parent.is_file():
            raise UsageError(f"cluster.storage-path must be a folder, got the file {parent}: choose another")
    return folder


def job_of(trial: Trial, pipeline: PipelineConfig, folder: Path) -> Job:
    """The run of one trial."""
    return Job(
        label=trial.name,
        pipeline=trial.pipeline_of(pipeline),
        folder=folder / trial.name,
    )


def _one_after_the_other(config: SweepConfig, trials: Sequence[Trial], folder: Path) -> None:
    """The grid in this process, without Ray."""
    if config.sweep.search == "asha":
        raise UsageError("ASHA needs Ray to stop trials: set cluster.num-workers to 1 or more, or search at random")
    for trial in trials:
        job = job_of(trial, config.pipeline, folder)
        with _up_to_date(config, job.folder):
            forget_errors([job.folder])
        try:
            launch([job], name=job.label, folder=job.folder)
            with _up_to_date(config, job.folder):
                check_applied(job)
        except StsError as error:  # the other trials are still wanted
            note_error(job.folder, str(error))


def _tune(config: SweepConfig, trials: Sequence[Trial], folder: Path) -> None:
    cluster, grid = config.pipeline.cluster, config.sweep
    jobs = {trial.name: job_of(trial, config.pipeline, folder).to_plain() for trial in trials}
    groups = _groups(list(jobs), grid.cells_per_trial if grid.search != "asha" else 1)
    with answered_in([folder / trial.name for trial in trials]), _cluster_of(config):
        import ray
        from ray import tune

        from sts_pipelines.sweep.tune import Narrator, asha, no_exit_hook

        # Nothing reads what Tune's loggers write, and the one for TensorBoard can wait for its queue for ever at exit.
        os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
        logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # failures are told once, at the end
        space = {"jobs": tune.grid_search([[jobs[name] for name in group] for group in groups])}
        tuner = tune.Tuner(
            tune.with_resources(trainable_of(config), {"CPU": TRIAL_CPUS}),
            param_space=space,
            tune_config=tune.TuneConfig(
                metric=grid.metric,
                mode="max",
                max_concurrent_trials=_num_at_a_time(config),
                scheduler=asha(config) if grid.search == "asha" else None,
                trial_dirname_creator=lambda trial: trial.trial_id,
            ),
            run_config=tune.RunConfig(
                name=".tune",
                storage_path=str(folder),
                verbose=0,
                callbacks=[Narrator(cluster.max_failures, storage_path=cluster.storage_path)],
                failure_config=tune.FailureConfig(max_failures=cluster.max_failures),
            ),
        )
        try:
            with no_exit_hook():
                tuner.fit()
        except (ray.exceptions.RayError, RuntimeError) as error:  # trials that fail do not raise: Ray itself has gone
            raise RunError(f"Ray stopped the sweep ({first_line(error)}): rerun the same command to resume") from error


def _cluster_of(config: SweepConfig) -> AbstractContextManager[None]:
    """A connection to the cluster that the trials run on."""
    cluster = config.pipeline.cluster
    concurrent = config.sweep.max_concurrent or num_trials_at_a_time(local_resources(), cluster)
    num_cpus = concurrent * (cluster.num_workers * cluster.cpus_per_worker + TRIAL_CPUS)
    return ray_cluster(cluster, num_cpus=num_cpus, dashboard=True)


def _num_at_a_time(config: SweepConfig) -> int:
    """How many trials are to run at a time on the cluster that there is a connection to, or in this process."""
    cluster = config.pipeline.cluster
    if config.sweep.max_concurrent or cluster.num_workers == 0:
        return config.sweep.max_concurrent or 1
    if cluster.address is None:
        return num_trials_at_a_time(local_resources(), cluster)
    import ray

    return num_trials_at_a_time(ray.cluster_resources(), cluster, trial_cpus=TRIAL_CPUS)


def _groups(names: Sequence[str], size: int) -> list[list[str]]:
    return [list(names[start : start + size]) for start in range(0, len(names), size)]


def num_trials_at_a_time(resources: Mapping[str, float], cluster: ClusterConfig, *, trial_cpus: float = 0.0) -> int:
    """How many trials fit at a time; a cluster that we do not start ourselves has no CPUs on top for their drivers."""
    fits = [resources.get("CPU", 0.0) / (cluster.num_workers * cluster.cpus_per_worker + trial_cpus)]
    if cluster.use_gpu:
        fits.append(resources.get("GPU", 0.0) / cluster.num_workers)
    return max(1, int(min(fits)))


def trainable_of(config: SweepConfig) -> Callable[[dict[str, Any]], None]:
    """What a Tune trial does: it computes nothing itself, but launches workers, waits, checks and reports."""
    metric = config.sweep.metric
    searching = config.sweep.search == "asha"

    def trainable(point: dict[str, Any]) -> None:
        from ray import tune
        from ray.tune.integration.ray_train import TuneReportCallback

        jobs = [Job.from_plain(plain) for plain in point["jobs"]]
        folders, storage_path = [job.folder for job in jobs], config.pipeline.cluster.storage_path
        with up_to_date(storage_path, folders):
            forget_errors(folders)
        callbacks = [TuneReportCallback()] if searching else []
        measure = metric if searching else None
        unforeseen: RunError | None = None
        try:
            failed = attempt(jobs, partial(_train_with_restarts, callbacks=callbacks, measure=measure))
        except Exception as error:  # not one of ours: told at the end as well, as nobody sees a trial's traceback
            unforeseen = RunError(f"{type(error).__name__}: {first_line(error)}")
        with up_to_date(storage_path, folders):
            if unforeseen is not None:
                failed = [(job, unforeseen) for job in jobs if not is_evaluated(job.folder, job.pipeline)]
            applied = applied_values(jobs, failed)
        if not applied:  # raising would make Tune start the trial again, which only helps one that was killed
            return
        values = [value_in(job.folder, metric) for job in jobs]
        tune.report({metric: max(value or 0.0 for value in values), **applied})

    return trainable


def _train_with_restarts(jobs: Sequence[Job], **options: Any) -> None:
    """Start lost workers again from here, and not by Ray Train's controller.

    When Tune stops a trial, its workers may be gone before their controller is. One that restarts workers asks for new
    resources then, and is stopped itself before it has told anybody: nobody would ever give them back.
    """
    allowed = jobs[0].pipeline.cluster.max_failures
    for failures in itertools.count(1):
        try:
            train_on_ray(jobs, name=jobs[0].label, folder=jobs[0].folder, max_failures=0, **options)
        except WorkersError:
            if 0 <= allowed < failures:
                raise
        else:
            return
