"""Small trainings by hosts that have a trainer of their own, resumed from its last checkpoint."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sts_core import make_teacher
from tests.core.integrations.trained import CONFIG, LABELS, SEED, Trained, computed, copied, images, network


def lightning(folder: Path, steps: int, accumulate: int = 1, mixed: bool = False) -> Trained:
    import lightning.pytorch as pl

    from sts_core.integrations.lightning import TeacherCallback

    class Module(pl.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def training_step(self, batch: Any, index: int) -> Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def on_train_batch_end(self, *arguments: Any) -> None:
            if self.trainer.global_step > before + len(history):
                history.append(copied(self.net))

        def validation_step(self, batch: Any, index: int) -> None:
            outputs.append(self.net(images(99)))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    module, callback = Module(), TeacherCallback(CONFIG, seed=SEED, part="net")
    history, outputs, start = [], [], copied(module.net)
    trainer, checkpoint = _lightning_trainer(folder, steps, accumulate, mixed, callback)
    before = 0 if checkpoint is None else int(checkpoint.stem.removeprefix("step="))
    trainer.fit(module, _batches(accumulate), ckpt_path=checkpoint)
    trainer.validate(module, _batches(1), verbose=False)
    return Trained(
        network=network,
        start=start,
        followed=history,
        student=copied(module.net),
        teacher=copied(callback.teachers["teacher"]),
        evaluated=outputs[-1].float(),
        compute=computed,
    )


def lightly(folder: Path, steps: int, accumulate: int = 1, mixed: bool = False) -> Trained:
    """lightly's BYOL, which updates the momentum networks at the beginning of a training step."""
    import lightning.pytorch as pl
    from lightly.loss import NegativeCosineSimilarity
    from lightly.models.modules import BYOLPredictionHead, BYOLProjectionHead

    from sts_core.integrations.lightly import MomentumUpdate

    keep = replace(CONFIG, buffers="keep")  # the momentum network has its own, from its own forward passes

    class BYOL(pl.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.backbone = network()
            self.head, self.prediction_head = BYOLProjectionHead(3, 8, 4), BYOLPredictionHead(4, 8, 4)
            self.backbone_momentum, self.head_momentum = make_teacher(self.backbone), make_teacher(self.head)
            self.update_momentum, self.criterion = MomentumUpdate(keep, seed=SEED), NegativeCosineSimilarity()

        def training_step(self, batch: Any, index: int) -> Tensor:
            if index % accumulate == 0:
                history.append(copied(self.backbone))
            step = self.trainer.global_step
            self.update_momentum(self.backbone, self.backbone_momentum, 0.9, step=step)
            self.update_momentum(self.head, self.head_momentum, 0.9, step=step)
            own = self.prediction_head(self.head(self.backbone(batch[0])))
            with torch.no_grad():
                target = self.head_momentum(self.backbone_momentum(batch[0] + 0.1))
            return self.criterion(own, target)  # type: ignore[no-any-return]

        def validation_step(self, batch: Any, index: int) -> None:
            outputs.append(self.backbone_momentum(images(99)))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    module, history, outputs = BYOL(), [], []
    start = copied(module.backbone)
    trainer, checkpoint = _lightning_trainer(folder, steps, accumulate, mixed)
    trainer.fit(module, _batches(accumulate), ckpt_path=checkpoint)
    trainer.validate(module, _batches(1), verbose=False)
    return Trained(
        network=network,
        start=start,
        followed=history,
        student=copied(module.backbone),
        teacher=copied(module.backbone_momentum),
        evaluated=outputs[-1].float(),
        compute=computed,
        config=keep,
    )


def _batches(number: int) -> Any:
    return torch.utils.data.DataLoader([(images(i), LABELS) for i in range(number)], batch_size=None)


def _lightning_trainer(
    folder: Path, steps: int, accumulate: int, mixed: bool, *callbacks: Any
) -> tuple[Any, Path | None]:
    """A trainer whose epochs are steps, with a checkpoint of each, and the last one that there is."""
    import lightning.pytorch as pl

    last = max(folder.glob("step=*.ckpt"), default=None)
    keep = pl.callbacks.ModelCheckpoint(folder, save_top_k=-1, save_on_train_epoch_end=True, filename="{step}")
    options = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "max_epochs": steps}
    precision = "bf16-mixed" if mixed else "32-true"
    options |= {"precision": precision, "accumulate_grad_batches": accumulate, "num_sanity_val_steps": 0}
    return pl.Trainer(accelerator="cpu", callbacks=[*callbacks, keep], default_root_dir=folder, **options), last


def transformers(folder: Path, steps: int, accumulate: int = 1, mixed: bool = False) -> Trained:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from sts_core.integrations.transformers import add_teacher

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
            logits = self.net(x)
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    class Note(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *arguments: Any, **more: Any) -> None:
            history.append(copied(model))

    data = [{"x": row, "labels": int(label)} for i in range(8) for row, label in zip(images(i), LABELS, strict=True)]
    test = [{"x": row, "labels": 0} for row in images(99)]
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        save_steps=1,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=accumulate,
        bf16=mixed,
        lr_scheduler_type="constant",
        learning_rate=0.1,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    model, history = Model(), []
    start = copied(model)
    trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=test, callbacks=[Note()])
    callback = add_teacher(trainer, CONFIG, seed=SEED)
    trainer.train(resume_from_checkpoint=any(folder.glob("checkpoint-*")) or None)
    evaluated = torch.from_numpy(trainer.predict(test).predictions)
    return Trained(
        network=Model,
        start=start,
        followed=history,
        student=copied(model),
        teacher=copied(callback.teacher),
        evaluated=evaluated,
        compute=lambda state: computed({name.removeprefix("net."): value for name, value in state.items()}),
    )
