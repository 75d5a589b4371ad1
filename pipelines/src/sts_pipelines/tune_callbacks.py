"""Tune's side of a sweep: telling what happens, and stopping the worse trials of a search early."""

import time
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.schedulers import ASHAScheduler

from sts_methods.progress import format_seconds
from sts_pipelines.pipeline import SweepConfig
from sts_pipelines.sweep_results import mark_stopped


class Narrator(tune.Callback):  # type: ignore[misc]  # Ray has no types
    """Prints a line for every trial that ends, and notes the trials that a search gave up."""

    def __init__(self, folder: Path, num_trials: int) -> None:
        self.folder, self.num_trials = folder, num_trials
        self._started, self._ended = time.monotonic(), 0

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        for job in trial.config["jobs"]:
            folder = Path(job["folder"])
            if not (folder / "finished.json").is_file():
                mark_stopped(folder, int((trial.last_result or {}).get("step", 0)))
        self._say(trial, "done")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._say(trial, "FAILED")

    def _say(self, trial: Any, verdict: str) -> None:
        self._ended += 1
        seconds = (time.monotonic() - self._started) / self._ended * (self.num_trials - self._ended)
        names = ", ".join(job["label"] for job in trial.config["jobs"])
        print(f"trial {self._ended}/{self.num_trials} {verdict}: {names}  {format_seconds(seconds)} left", flush=True)


def asha(recipe: SweepConfig) -> ASHAScheduler:
    """ASHA by optimizer steps.

    `stop_last_trials=False`: by default a trial that skips a rung writes its later score into the lower rung, and
    good trials that come after it are stopped. Steps rather than reports, since a resumed trial reports anew.
    """
    training = recipe.pipeline.training
    every = training.checkpoint_every_steps or 1
    return ASHAScheduler(
        time_attr="step",
        max_t=10**9,  # trials end by themselves
        grace_period=every,
        reduction_factor=2,
        stop_last_trials=False,
    )
