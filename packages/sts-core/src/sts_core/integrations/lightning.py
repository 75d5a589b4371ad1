"""Lightning: a teacher, or several, of any LightningModule, as a callback."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import nn

from sts_core.attachment import Attachment
from sts_core.averages.record import BankRecord, Measure, averages_and_fragments
from sts_core.bank import TeacherBank
from sts_core.config import SmoothingConfig
from sts_core.errors import ConfigError, StateError
from sts_core.pairing import make_teacher
from sts_core.schedules import Schedule
from sts_core.smoother import Smoother

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError:
    from pytorch_lightning import Callback, LightningModule, Trainer

ONLY = "teacher"
"""The name of a single teacher."""


class TeacherCallback(Callback):  # type: ignore[misc]  # Lightning need not be installed where types are checked
    """Keeps teachers of the module that is trained, validates and tests with one of them, and saves and resumes them.

        trainer = Trainer(callbacks=[TeacherCallback(spatial_temporal_smoothing(0.99, 0.7), seed=0)])

    `configs` is one config, or a mapping from names to configs for several teachers of the one run. `evaluate_with`
    names the teacher whose weights the module has in validation, test and prediction; None leaves it its own. `part`
    is the name of the submodule to follow instead of the whole module. `momentum` is a schedule for a single teacher.
    With `trainable_only`, teachers share what does not require gradients, as the frozen base of LoRA's adapters.
    A checkpoint's `state_dict` is the student's, as without the callback; `teachers` holds the weights of each teacher
    by name, `smoother` what the next draws depend on.
    """

    def __init__(
        self,
        configs: SmoothingConfig | Mapping[str, SmoothingConfig],
        *,
        seed: int = 0,
        evaluate_with: str | None = ONLY,
        part: str = "",
        momentum: Schedule | None = None,
        trainable_only: bool = False,
    ) -> None:
        self.configs = {ONLY: configs} if isinstance(configs, SmoothingConfig) else dict(configs)
        if evaluate_with is not None and evaluate_with not in self.configs:
            raise ConfigError(f"evaluate_with must be None or one of {', '.join(self.configs)}, got {evaluate_with!r}")
        if momentum is not None and len(self.configs) > 1:
            raise ConfigError("a momentum schedule is for a single teacher, got several: give each its own momentum")
        self.seed, self.evaluate_with, self.part, self.momentum = seed, evaluate_with, part, momentum
        self.trainable_only = trainable_only
        self.follower: Smoother | TeacherBank | None = None
        """What moves the teachers; None before training."""
        self._attachment: Attachment | None = None
        self._lent = ExitStack()
        self._saved: Mapping[str, Any] | None = None

    @property
    def teachers(self) -> dict[str, nn.Module]:
        """The teachers by name; none before training."""
        if isinstance(self.follower, TeacherBank):
            return self.follower.teachers
        return {} if self.follower is None else {ONLY: self.follower.teacher}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make the teachers, now that the module is on its device and has the weights that it starts from."""
        self._follow(pl_module)
        assert self.follower is not None
        weights = set(pl_module.get_submodule(self.part).parameters())
        of_part = [o for o in trainer.optimizers if any(weights & set(group["params"]) for group in o.param_groups)]
        optimizers = of_part or trainer.optimizers  # those of other parts, as of a GAN, do not count
        if isinstance(self.follower, TeacherBank):
            self._attachment = self.follower.attach(*optimizers)
        else:
            self._attachment = self.follower.attach(*optimizers, momentum=self.momentum)

    def _follow(self, pl_module: LightningModule) -> None:
        student = pl_module.get_submodule(self.part)
        if set(self.configs) == {ONLY}:
            teacher, config = make_teacher(student, trainable_only=self.trainable_only), self.configs[ONLY]
            self.follower = Smoother(student=student, teacher=teacher, config=config, **self._options())
        else:
            self.follower = TeacherBank(student=student, configs=self.configs, **self._options())
        if self._saved is not None:
            self._restore(self._saved)

    def _options(self) -> dict[str, Any]:
        return {"seed": self.seed, "trainable_only": self.trainable_only}

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Let the optimizers go; the teachers stay for a test after training."""
        self._lent.close()
        if self._attachment is not None:
            self._attachment.detach()

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add the teachers to a checkpoint."""
        if self.follower is not None:
            state = self.follower.state_dict()
            checkpoint["smoother"] = {name: value for name, value in state.items() if name != "teachers"}
            checkpoint["teachers"] = {name: teacher.state_dict() for name, teacher in self.teachers.items()}

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Keep what a checkpoint holds of the teachers until the module is on its device."""
        if "smoother" not in checkpoint or set(checkpoint["teachers"]) != set(self.configs):
            found = ", ".join(checkpoint.get("teachers", {})) or "none"
            raise StateError(f"the checkpoint must hold the teachers {', '.join(self.configs)}, it holds {found}")
        self._saved = {name: checkpoint[name] for name in ("smoother", "teachers")}

    def _restore(self, saved: Mapping[str, Any]) -> None:
        assert self.follower is not None
        if isinstance(self.follower, TeacherBank):
            self.follower.load_state_dict({**saved["smoother"], "teachers": saved["teachers"]})
        else:
            self.follower.load_state_dict(saved["smoother"])
            self.follower.teacher.load_state_dict(saved["teachers"][ONLY])
        self._saved = None

    def _lend(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._saved is not None:  # `ckpt_path=`, before or after a training
            self._follow(pl_module)
        if self.follower is None or self.evaluate_with is None:
            return
        if self.follower.student is not pl_module.get_submodule(self.part):
            raise StateError("a teacher evaluates the module that it follows, got another one: pass ckpt_path, too")
        if isinstance(self.follower, TeacherBank):
            self._lent.enter_context(self.follower.swapped(self.evaluate_with))
        else:
            self._lent.enter_context(self.follower.swapped())

    def _take_back(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._lent.close()

    on_validation_epoch_start = on_test_epoch_start = on_predict_epoch_start = _lend
    on_validation_epoch_end = on_test_epoch_end = on_predict_epoch_end = _take_back

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Give the module its own weights back before anything is saved."""
        self._lent.close()


class BankCallback(TeacherCallback):
    """Keeps many teachers of one run and measures them all at the end of every `every_n_epochs`-th epoch.

        Trainer(callbacks=[BankCallback(lambda network: {"accuracy": accuracy(network, images, labels)})])

    `configs` are `averages_and_fragments()` unless given. `measure` is called with the module that is trained (or its
    `part`) in evaluation mode, which has the student's weights first, then each teacher's. What it returns is written
    to `path`, by default averages.jsonl in the trainer's folder; `sts_eval.write_averages_report` makes a page of it.
    """

    def __init__(
        self,
        measure: Measure,
        configs: Mapping[str, SmoothingConfig] | None = None,
        *,
        path: str | Path | None = None,
        every_n_epochs: int = 1,
        seed: int = 0,
        part: str = "",
        trainable_only: bool = False,
    ) -> None:
        chosen = averages_and_fragments() if configs is None else configs
        if set(chosen) <= {ONLY}:
            raise ConfigError("a bank is for teachers to be compared by their names: use TeacherCallback for one")
        super().__init__(chosen, seed=seed, evaluate_with=None, part=part, trainable_only=trainable_only)
        self.measure, self.path, self.every_n_epochs = measure, path, every_n_epochs
        self.record: BankRecord | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make the teachers, and open the record."""
        super().on_fit_start(trainer, pl_module)
        assert isinstance(self.follower, TeacherBank)
        path = Path(trainer.default_root_dir) / "averages.jsonl" if self.path is None else self.path
        self.record = BankRecord(self.follower, path, self.measure)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure."""
        if self.record is not None and (trainer.current_epoch + 1) % self.every_n_epochs == 0:
            self.record.measure()
