"""Tune's side of a sweep: telling what happens, stopping the worse trials of a search early, leaving nothing behind."""

import atexit
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune import registry
from ray.tune.schedulers import ASHAScheduler

from sts_pipelines.config.sweep import SweepConfig
from sts_pipelines.launch.storage import up_to_date
from sts_pipelines.sweep.outcomes import has_failed, mark_stopped, note_error


class Narrator(tune.Callback):  # type: ignore[misc]  # Ray has no types
    """Says which trials failed, were lost or given up, and notes the latter two in their folders."""

    def __init__(self, max_failures: int, *, storage_path: str) -> None:
        self.max_failures, self.storage_path = max_failures, storage_path

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        jobs = _jobs(trial)
        with up_to_date(self.storage_path, jobs.values()):
            for label, folder in jobs.items():
                if has_failed(folder):
                    _say(f"{label}: FAILED")
                elif not (folder / "finished.json").is_file():
                    step = int((trial.last_result or {}).get("step", 0))
                    mark_stopped(folder, step)
                    _say(f"{label}: given up at step {step}")

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        _say(f"{', '.join(_jobs(trial))}: the trial was lost and starts again from the newest checkpoint")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        jobs = _jobs(trial)
        with up_to_date(self.storage_path, jobs.values()):
            for label, folder in jobs.items():
                if not (folder / "finished.json").is_file():
                    note_error(folder, f"the trial was lost more often than max_failures={self.max_failures} allows")
                    _say(f"{label}: FAILED")


def _jobs(trial: Any) -> dict[str, Path]:
    """The folders of a trial's jobs by label."""
    return {job["label"]: Path(job["folder"]) for job in trial.config["jobs"]}


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def asha(config: SweepConfig) -> ASHAScheduler:
    """ASHA by optimizer steps.

    `stop_last_trials=False`: by default a trial that skips a rung writes its later score into the lower rung, and
    good trials that come after it are stopped. Steps rather than reports, since a resumed trial reports anew.
    """
    training = config.pipeline.training
    every = training.checkpoint_every_steps or 1
    return ASHAScheduler(
        time_attr="step",
        max_t=10**9,  # trials end by themselves
        grace_period=every,
        reduction_factor=2,
        stop_last_trials=False,
    )


@contextlib.contextmanager
def no_exit_hook() -> Iterator[None]:
    """Remove what Tune has registered in the cluster now, and not at the interpreter's exit, when the cluster is gone.

    A sweep that fails or is interrupted only takes the hook back: its cluster may not answer any more.
    """
    try:
        yield
        registry._unregister_all()
    finally:
        atexit.unregister(registry._unregister_all)
        registry._global_registry._atexit_handler_registered = False  # the next sweep registers, and removes, it anew
