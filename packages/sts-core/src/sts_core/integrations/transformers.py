"""transformers: a teacher of any model that a Trainer trains."""

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from transformers import Trainer, TrainerCallback

from sts_core.attachment import Attachment
from sts_core.averages.record import BankRecord, averages_and_fragments
from sts_core.bank import TeacherBank
from sts_core.config import SmoothingConfig
from sts_core.errors import ConfigError, StateError
from sts_core.files import replacing, write_atomically
from sts_core.pairing import make_teacher
from sts_core.schedules import Schedule
from sts_core.smoother import Smoother
from sts_core.weights import load_strictly, read_weights

WEIGHTS, STATE, BANK = "teacher.safetensors", "teacher.json", "bank.pt"
"""The files beside a checkpoint's own."""
_TIMES = ("runtime", "per_second", "preparation_time")


def add_teacher(
    trainer: Trainer,
    config: SmoothingConfig,
    *,
    seed: int = 0,
    momentum: Schedule | None = None,
    evaluate: bool = True,
    trainable_only: bool = False,
) -> "TeacherCallback":
    """Give a Trainer a teacher that follows its model; returns the callback, whose `teacher` it is.

        add_teacher(trainer, spatial_temporal_smoothing(0.99, 0.7), seed=0)
        trainer.train()

    With `evaluate`, `trainer.evaluate()` and `predict()`, those that training calls included, compute with the
    teacher's weights. Every checkpoint gets `teacher.safetensors`, from which a resumed training carries on. With
    `trainable_only`, the teacher and its file have what requires gradients, as LoRA's adapters do, and no frozen base.
    """
    callback = TeacherCallback(config, seed=seed, momentum=momentum, trainable_only=trainable_only)
    trainer.add_callback(callback)
    for name in ("evaluate", "predict") if evaluate else ():
        setattr(trainer, name, callback.with_teacher(getattr(trainer, name)))
    return callback


class TeacherCallback(TrainerCallback):  # type: ignore[misc]  # transformers need not be installed where types are checked
    """Moves the teacher after every real step of the optimizer, and saves and resumes it; see `add_teacher`."""

    def __init__(
        self,
        config: SmoothingConfig,
        *,
        seed: int = 0,
        momentum: Schedule | None = None,
        trainable_only: bool = False,
    ) -> None:
        self.config, self.seed, self.momentum, self.trainable_only = config, seed, momentum, trainable_only
        self.smoother: Smoother | None = None
        self._attachment: Attachment | None = None

    @property
    def teacher(self) -> Any:
        """The teacher; None before training."""
        return None if self.smoother is None else self.smoother.teacher

    def with_teacher(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, called with the teacher's weights in the model; before training, with the model's own."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.smoother is None:
                return function(*args, **kwargs)
            with self.smoother.swapped():
                return function(*args, **kwargs)

        return call

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Make the teacher from the model, or take it from the checkpoint that is resumed."""
        model, optimizer = _given(kwargs)
        teacher = make_teacher(model, trainable_only=self.trainable_only)
        options: dict[str, Any] = {"seed": self.seed, "trainable_only": self.trainable_only}
        self.smoother = Smoother(student=model, teacher=teacher, config=self.config, **options)
        if state.global_step:
            self._restore(_checkpoint(args, state))
        self._attachment = self.smoother.attach(optimizer, momentum=self.momentum)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Let the optimizer go; the teacher stays, or is the best model's where that is loaded."""
        if self._attachment is not None:
            self._attachment.detach()
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            self._restore(Path(state.best_model_checkpoint))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the teacher into the checkpoint's folder; every rank has the same, so one writes."""
        if self.smoother is None or not state.is_world_process_zero:
            return
        folder, left_out = _checkpoint(args, state), self._left_out()
        weights = {n: t.contiguous() for n, t in self.smoother.teacher.state_dict().items() if n not in left_out}
        safetensors.torch.save_file(weights, str(folder / WEIGHTS))
        write_atomically(folder / STATE, json.dumps(self.smoother.state_dict()) + "\n")

    def _restore(self, folder: Path) -> None:
        assert self.smoother is not None
        if not (folder / STATE).is_file():
            raise StateError(f"a training that is resumed needs its teacher, but {folder} has no {STATE}")
        file = folder / WEIGHTS
        load_strictly(self.smoother.teacher, read_weights(file), origin=str(file), missing=self._left_out())
        self.smoother.load_state_dict(json.loads((folder / STATE).read_text(encoding="utf-8")))

    def _left_out(self) -> set[str]:
        """Names whose tensors the file does not hold: the student's own, and second names of tied weights."""
        assert self.smoother is not None
        seen = {id(tensor) for tensor in self.smoother.student.parameters()}
        names = set()
        for name, tensor in self.smoother.teacher.state_dict(keep_vars=True).items():
            if id(tensor) in seen:
                names.add(name)
            seen.add(id(tensor))
        return names


def add_bank(
    trainer: Trainer,
    configs: Mapping[str, SmoothingConfig] | None = None,
    *,
    seed: int = 0,
    path: str | Path | None = None,
) -> "BankCallback":
    """Give a Trainer many teachers that follow its model in one run; returns the callback, whose `bank` they are.

        add_bank(trainer)
        trainer.train()  # with eval_strategy="steps" or "epoch"

    `configs` are `averages_and_fragments()` unless given. Whenever the Trainer evaluates, it evaluates with each
    teacher's weights, too. The metrics are written to `path`, by default averages.jsonl in the output folder;
    `sts_eval.write_averages_report` makes a page of it. Every checkpoint gets `bank.pt`.
    """
    callback = BankCallback(trainer, averages_and_fragments() if configs is None else configs, seed=seed, path=path)
    trainer.add_callback(callback)
    return callback


class BankCallback(TrainerCallback):  # type: ignore[misc]
    """Moves a bank's teachers, measures them where the Trainer evaluates, saves and resumes them; see `add_bank`."""

    def __init__(
        self, trainer: Trainer, configs: Mapping[str, SmoothingConfig], *, seed: int, path: str | Path | None
    ) -> None:
        self.configs, self.seed, self.path = configs, seed, path
        self.bank: TeacherBank | None = None
        self.record: BankRecord | None = None
        self._evaluate, self._is_measuring = trainer.evaluate, False
        self._attachment: Attachment | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Make the teachers from the model, or take them from the checkpoint that is resumed."""
        model, optimizer = _given(kwargs)
        self.bank = TeacherBank(student=model, configs=self.configs, seed=self.seed)
        if state.global_step:
            file = _checkpoint(args, state) / BANK
            if not file.is_file():
                raise StateError(f"a training that is resumed needs its teachers, but {file} does not exist")
            self.bank.load_state_dict(read_weights(file))
        path = Path(args.output_dir) / "averages.jsonl" if self.path is None else self.path
        self.record = BankRecord(self.bank, path, self._metrics)
        self._attachment = self.bank.attach(optimizer)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Let the optimizer go; the teachers stay."""
        if self._attachment is not None:
            self._attachment.detach()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure the student and every teacher, by the Trainer's own evaluation."""
        if self.record is not None and not self._is_measuring:
            self._is_measuring = True
            try:
                self.record.measure()
            finally:
                self._is_measuring = False

    def _metrics(self, network: Any) -> dict[str, float]:
        found = self._evaluate(metric_key_prefix="bank")
        named = {name.removeprefix("bank_"): value for name, value in found.items() if name.startswith("bank_")}
        return {name: value for name, value in named.items() if not name.endswith(_TIMES)}

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the teachers into the checkpoint's folder."""
        if self.bank is not None and state.is_world_process_zero:
            with replacing(_checkpoint(args, state) / BANK) as partial:
                torch.save(self.bank.state_dict(), partial)


def _given(kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    """The model and the optimizer, as every Trainer passes them since callbacks exist."""
    missing = [name for name in ("model", "optimizer") if kwargs.get(name) is None]
    if missing:
        raise ConfigError(
            f"on_train_begin needs the Trainer's {' and '.join(missing)}, which this version does not pass"
        )
    return kwargs["model"], kwargs["optimizer"]


def _checkpoint(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"
