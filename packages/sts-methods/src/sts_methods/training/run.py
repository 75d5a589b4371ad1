"""The housekeeping around the training loop: building, restoring, logging, checkpoints and checks."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from torch import Tensor

from sts_core.distributed import agree, gather_objects, verify_ranks
from sts_core.fields import incidental_names, with_present_names
from sts_methods.batch import Batch
from sts_methods.data.batches import TrainingData
from sts_methods.methods.base import StudentTeacherMethod
from sts_methods.methods.registry import build_method
from sts_methods.runs.metrics_log import MetricWindow
from sts_methods.runs.resume import check_resumable
from sts_methods.runs.runtime import RunPlan, Runtime
from sts_methods.training.config import TrainingConfig
from sts_methods.training.data import build_data
from sts_methods.training.description import describe_training, resolved
from sts_methods.training.drift import drift_tracker
from sts_methods.training.failure_checks import FailureChecks
from sts_methods.training.final_networks import FinalNetworks
from sts_methods.training.initial import InitialWeights, remembered, start_from_, warn_of_statistics
from sts_methods.training.learner import Learner
from sts_methods.training.observation import Observation


class Run:
    """One run of `fit`: its learner, its data from the current step on, and its book-keeping."""

    def __init__(
        self,
        config: TrainingConfig,
        runtime: Runtime,
        *,
        method: StudentTeacherMethod | None = None,
        data: TrainingData | None = None,
        observation: Observation | None = None,
    ) -> None:
        self.config, self.runtime, self.observation = config, runtime, observation
        self.data = data if data is not None else build_data(config, runtime)
        self.last_step = config.last_step(self.data.steps_per_epoch)
        self._config_json = resolved(config)
        state = self._restored()
        method = method if method is not None else build_method(config.method, seed=config.seed)
        self.initial = self._start_from(method) if state is None else remembered(state["meta"])
        """The trained weights that the backbones started from, if any."""
        self.learner = Learner(
            config,
            method,
            runtime,
            total_steps=config.total_steps(self.data.steps_per_epoch),
            steps_per_epoch=self.data.steps_per_epoch,
        )
        self.failure_checks = FailureChecks(
            runtime.folder,
            on_nonfinite=config.on_nonfinite,
            on_collapse=config.on_collapse,
            least={"feature_std": config.collapse_feature_std, "effective_rank": config.collapse_effective_rank},
            scaled=self.learner.scaler.is_enabled(),
        )
        self.drift = drift_tracker(config, self.data, self.learner.method.teacher) if config.track_drift else None
        self.step = 0
        """Optimizer steps done."""
        self.metrics: dict[str, float] = {}
        """The last metrics reported."""
        self._shared_every = (
            *(config.verify_ranks_every_steps, config.checkpoint_every_steps, config.log_every_steps),
            None if self.drift is None and observation is None else self.data.steps_per_epoch,
        )
        self._end_step = getattr(runtime, "end_step", None)  # a runtime may do without
        if state is not None:
            self._resume_from(state)
        self.batches = self.data.steps(self.step)
        self._window, self._num_images, self._num_left_out = MetricWindow(), 0, 0
        self._unconfirmed: Mapping[str, Tensor] | None = None
        self._logged_at = self._saved_at = time.monotonic()

    def start(self) -> None:
        """Tell the runtime what is to come, and see that all ranks begin alike."""
        parts = 1 if self.data.label_split is None else 1 + self.config.data.unlabelled_ratio
        notes = (
            getattr(self.data, "note", None),  # data of the user's own may have none
            None if self.initial is None else f"backbones start from {self.initial}",
        )
        plan = RunPlan(
            config=self._config_json,
            training=describe_training(self.config),
            first_step=self.step,
            total_steps=self.last_step,
            steps_per_epoch=self.data.steps_per_epoch,
            images_per_step=self.config.global_batch_size * parts,
            keep_checkpoints=self.config.keep_checkpoints,
            note="\n".join(filter(None, notes)) or None,
        )
        self.runtime.start(plan)
        if self.runtime.rank == 0 and self.data.label_split is not None:
            self.data.label_split.save(self.runtime.folder / "labels.json")
        verify_ranks(self.learner.named_tensors(), device=self.runtime.device)

    def confirm_step(self) -> None:
        """Learn whether the last step's update and metrics count; called before the next one changes anything."""
        if self._unconfirmed is None:
            return
        metrics, self._unconfirmed = self._unconfirmed, None
        outcome = self.failure_checks.outcome()
        if outcome != "applied":
            self.learner.take_back()
        if outcome == "left out":
            self._num_left_out += 1
        else:
            self._window.add(metrics)

    def end_step(self, metrics: Mapping[str, Tensor], batches: Sequence[Batch]) -> None:
        """Count the step; verify, log and save when it is time to."""
        self.failure_checks.watch(self.step, self.learner.skip, metrics["loss"], batches)
        self.step, self._unconfirmed = self.step + 1, metrics
        self._num_images += sum(_num_images(batch, self.runtime.world_size) for batch in batches)
        last = self.step == self.last_step
        if last or any(map(self._every, self._shared_every)):
            self.learner.method.share_statistics_()
        if self._every(self.config.verify_ranks_every_steps) or last:
            verify_ranks(self.learner.named_tensors(), device=self.runtime.device)
        seen = self._end_of_epochs()
        log = bool(seen) or last or self._every(self.config.log_every_steps)
        save = last or self._every(self.config.checkpoint_every_steps) or (log and self._minutes_passed())
        if log or save:
            self.confirm_step()
            self._report(batches, seen, save=save)
        if self._end_step is not None:
            self._end_step(self.step, self._state_now)

    def _state_now(self) -> dict[str, Any]:
        """A checkpoint ahead of time, which all ranks make together."""
        self.confirm_step()
        self.learner.method.share_statistics_()
        return self.state_dict(self.learner.bank_state())

    def _end_of_epochs(self) -> dict[str, float]:
        """What is recorded after whole epochs; the clock of images per second stands still meanwhile."""
        started, epoch, seen = time.monotonic(), self.data.steps_per_epoch, dict[str, float]()
        if self.drift is not None and self._every(epoch):
            seen |= self.drift.end_epoch()
        if self.observation is not None and self._every(epoch * self.observation.every_epochs):
            seen |= self.observation.of(self.learner.method, self.runtime.device)
        self._logged_at += time.monotonic() - started
        return seen

    def save_backbones(self) -> None:
        """The networks as they are, in the run folder."""
        final = FinalNetworks(self.runtime.folder, self.config, self._config_json, self.initial)
        final.save(self.learner, rank=self.runtime.rank, step=self.step)

    def close(self) -> None:
        """Stop reading data, and let the runtime finish its writes."""
        close = getattr(self.batches, "close", None)
        if close is not None:
            close()
        self.runtime.close()

    def state_dict(self, bank: Mapping[str, Any] | None) -> dict[str, Any]:
        """A whole checkpoint with the bank's state: what the next step depends on, and in "meta" what it belongs to."""
        return {
            "meta": {
                "step": self.step,
                "epoch": self.step / self.data.steps_per_epoch,
                "config": self._config_json,
                "label_split": self._label_split(),
                "images": self._images(),
                "initial": None if self.initial is None else self.initial.described(),
                "world_size": self.runtime.world_size,
                "metrics": self.metrics,
            },
            **self.learner.state_dict(bank),
            "drift": self.drift.state_dict() if self.drift is not None else None,
        }

    def _restored(self) -> dict[str, Any] | None:
        """The checkpoint to resume from, if it belongs to this run."""
        state = self.runtime.restore()
        if state is not None:
            check_resumable(
                state["meta"] | {"config": with_present_names(self.config, state["meta"]["config"])},
                config=self._config_json,
                incidental=set(incidental_names(self.config)),
                label_split=self._label_split(),
                images=self._images(),
                world_size=self.runtime.world_size,
            )
        return state

    def _start_from(self, method: StudentTeacherMethod) -> InitialWeights | None:
        if self.config.initial.weights is None:
            return None
        origin = start_from_(method, self.config.initial, self.config.method)
        if self.runtime.rank == 0:
            warn_of_statistics(origin, self.config.data.statistics)
        return origin

    def _resume_from(self, state: Mapping[str, Any]) -> None:
        self.learner.load_state_dict(state)
        if self.drift is not None:
            self.drift.load_state_dict(state["drift"])
        self.step, self.metrics = state["meta"]["step"], dict(state["meta"]["metrics"])

    def _report(self, batches: Sequence[Batch], seen: Mapping[str, float], *, save: bool) -> None:
        now = time.monotonic()
        applied = self.learner.smoother.applied
        self.metrics = {
            "step": self.step,
            "epoch": self.step / self.data.steps_per_epoch,
            **self._window.flush(),
            "learning_rate": self.learner.learning_rate(self.step - 1),
            **(asdict(applied) if applied is not None else {}),
            "images_per_second": self._num_images / max(now - self._logged_at, 1e-9),
            **self._skipped_images(),
            **({"left_out_batches": self._num_left_out} if self.config.on_nonfinite == "warn" else {}),
            **seen,
        }
        self._num_images, self._num_left_out, self._logged_at = 0, 0, now
        self._saved_at = now if save else self._saved_at
        self.failure_checks.check_health(self.metrics, batches, self.step)
        if save:
            self.failure_checks.check_weights(self.learner.named_tensors(), self.step)
        bank = self.learner.bank_state() if save else None
        self.runtime.report(self.metrics, partial(self.state_dict, bank) if save else None)

    def _every(self, steps: int | None) -> bool:
        return steps is not None and self.step % steps == 0

    def _minutes_passed(self) -> bool:
        """By rank 0's clock, on every rank."""
        minutes = self.config.checkpoint_every_minutes
        if minutes is None:
            return False
        passed = time.monotonic() - self._saved_at >= 60.0 * minutes
        return agree(passed and self.runtime.rank == 0, self.runtime.device)

    def _label_split(self) -> str | None:
        return self.data.label_split.sha256 if self.data.label_split is not None else None

    def _images(self) -> str | None:
        """The fingerprint of the training images; data of the user's own may have none."""
        return getattr(self.data, "fingerprint", None)

    def _skipped_images(self) -> dict[str, float]:
        """How many unreadable images the ranks together have met since this start; nothing if they stop the run."""
        if self.config.data.on_error != "skip":
            return {}
        return {"skipped_images": len(set().union(*gather_objects(set(self.data.skipped))))}


def _num_images(batch: Batch, world_size: int) -> int:
    """Of all ranks."""
    mine = batch.indices.numel() + (0 if batch.labelled is None else batch.labelled.shape[0])
    rows = batch.rows_of_ranks(mine)
    return mine * world_size if rows is None else sum(rows)
