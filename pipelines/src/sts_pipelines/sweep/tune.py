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

from sts_pipelines.config.pipeline import SweepConfig
from sts_pipelines.sweep.outcomes import mark_stopped


class Narrator(tune.Callback):  # type: ignore[misc]  # Ray has no types
    """Says which trials failed or were given up, and notes the latter so that they are not taken up again."""

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        for job in trial.config["jobs"]:
            folder = Path(job["folder"])
            if not (folder / "finished.json").is_file():
                step = int((trial.last_result or {}).get("step", 0))
                mark_stopped(folder, step)
                print(f"{job['label']}: given up at step {step}", file=sys.stderr, flush=True)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        failed = [job["label"] for job in trial.config["jobs"] if (Path(job["folder"]) / "error.json").is_file()]
        print(f"FAILED: {', '.join(failed)}", file=sys.stderr, flush=True)


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
