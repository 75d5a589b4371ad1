"""Seven ways to keep a moving average, each driven as its documentation says, on trainings of a few steps."""

import importlib.util
from copy import deepcopy
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn

from sts_core import Smoother, make_teacher, temporal_moving_average
from tests.core.conformance.training import Case, Host, Trained, loss, snapshot, spans


class Ours(Host):
    title, package = "sts-core `Smoother`", "sts-core"
    follows_optimizers, copies_first = True, False

    def begin(self, student: nn.Module, momentum: float) -> None:
        config = temporal_moving_average(momentum)
        self.smoother = Smoother(student=student, teacher=make_teacher(student), config=config, seed=0)

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        self.smoother.attach(optimizer)

    def module(self, student: nn.Module) -> nn.Module:
        return self.smoother.teacher

    def state(self) -> Any:
        return {"teacher": self.smoother.teacher.state_dict(), "smoother": self.smoother.state_dict()}

    def load(self, state: Any) -> None:
        self.smoother.teacher.load_state_dict(state["teacher"])
        self.smoother.load_state_dict(state["smoother"])


class Torch(Host):
    title = "torch `AveragedModel`"
    options: ClassVar = {"bf16 students": "avg_fn=get_ema_avg_fn(m)` and `.float()"}

    def begin(self, student: nn.Module, momentum: float) -> None:
        if self.uses(self.options["bf16 students"]):
            self.averaged = AveragedModel(student, avg_fn=get_ema_avg_fn(momentum)).float()
        else:
            self.averaged = AveragedModel(student, multi_avg_fn=get_ema_multi_avg_fn(momentum))

    def step(self, student: nn.Module) -> None:
        self.averaged.update_parameters(student)

    def module(self, student: nn.Module) -> nn.Module:
        return self.averaged.module  # type: ignore[no-any-return]

    def state(self) -> Any:
        return self.averaged.state_dict()

    def load(self, state: Any) -> None:
        self.averaged.load_state_dict(state)


class Timm(Host):
    title, package, made_early = "timm `ModelEmaV3`", "timm", True
    options: ClassVar = {"tied weights": "exclude_buffers=True", "FSDP2": "foreach=False"}

    def begin(self, student: nn.Module, momentum: float) -> None:
        from timm.utils import ModelEmaV3

        more = {"exclude_buffers": self.uses("exclude_buffers=True"), "foreach": not self.uses("foreach=False")}
        self.ema, self.updates = ModelEmaV3(student, decay=momentum, **more), 0

    def step(self, student: nn.Module) -> None:
        self.updates += 1
        self.ema.update(student, step=self.updates)

    def module(self, student: nn.Module) -> nn.Module:
        return self.ema.module  # type: ignore[no-any-return]

    def state(self) -> Any:  # train.py saves the module and computes the number of updates from the epoch
        return {"module": self.ema.module.state_dict(), "updates": self.updates}

    def load(self, state: Any) -> None:
        self.ema.module.load_state_dict(state["module"])
        self.updates = state["updates"]


class EmaPytorch(Host):
    title, package, follows_optimizers = "ema-pytorch `EMA`", "ema-pytorch", True
    options: ClassVar = {"bf16 students": "ema_model=deepcopy(student).float(), coerce_dtype=True"}

    def begin(self, student: nn.Module, momentum: float) -> None:
        from ema_pytorch import EMA

        every = {"update_after_step": 0, "update_every": 1, "min_value": momentum}
        if self.uses(self.options["bf16 students"]):
            every |= {"ema_model": deepcopy(student).float(), "coerce_dtype": True}
        self.ema = EMA(student, beta=momentum, include_online_model=False, **every)

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        self.ema.add_to_optimizer_post_step_hook(optimizer)

    def module(self, student: nn.Module) -> nn.Module:
        return self.ema.ema_model  # type: ignore[no-any-return]

    def state(self) -> Any:
        return self.ema.state_dict()

    def load(self, state: Any) -> None:
        self.ema.load_state_dict(state)


class Diffusers(Host):
    title, package, made_early = "diffusers `EMAModel`", "diffusers", True
    without_buffers = "it averages parameters, and the student's own buffers serve with them"
    options: ClassVar = {"bf16 students": ".to(dtype=torch.float32)"}

    def begin(self, student: nn.Module, momentum: float) -> None:
        from diffusers.training_utils import EMAModel

        self.ema = EMAModel(student.parameters(), decay=momentum, min_decay=momentum)
        if self.uses(".to(dtype=torch.float32)"):
            self.ema.to(dtype=torch.float32)

    def step(self, student: nn.Module) -> None:
        self.ema.step(student.parameters())

    def module(self, student: nn.Module) -> nn.Module:
        """The student itself, as it is between `copy_to` and `restore`."""
        self.ema.copy_to(student.parameters())
        return student

    def state(self) -> Any:
        return self.ema.state_dict()

    def load(self, state: Any) -> None:
        self.ema.load_state_dict(state)


class Lightly(Host):
    title, package = "lightly `update_momentum`", "lightly"
    copies_first, made_early = False, True
    without_buffers = "the momentum network has its own, from its own forward passes"
    options: ClassVar = {"bf16 students": "deepcopy(student).float()"}

    def begin(self, student: nn.Module, momentum: float) -> None:
        self.teacher, self.momentum = deepcopy(student), momentum
        if self.uses("deepcopy(student).float()"):
            self.teacher.float()

    @torch.no_grad()
    def step(self, student: nn.Module) -> None:
        from lightly.models.utils import update_momentum

        update_momentum(student, self.teacher, self.momentum)

    def module(self, student: nn.Module) -> nn.Module:
        return self.teacher


class Lightning(Host):
    title, package, follows_optimizers = "Lightning `WeightAveraging`", "lightning", True
    without_shards = "its documentation says that sharded models do not work"
    options: ClassVar = {"integer buffers": "use_buffers=False"}

    def train(self, case: Case) -> Trained:
        import lightning.pytorch as pl
        from lightning.pytorch.callbacks import Callback, ModelCheckpoint, WeightAveraging

        class Module(pl.LightningModule):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.net, self.cut = case.student(), False

            def training_step(self, batch: Any, index: int) -> Tensor:
                return loss(self.net(self.net.batch(index, case.rank)))

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

        class Sharded(Module):
            def configure_model(self) -> None:
                if not self.cut:
                    case.wrap and case.wrap(self.net)
                    self.cut = True

        class Watch(Callback):  # type: ignore[misc]
            def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
                if index % case.accumulate == 0:
                    case.change(trainer.global_step, module.net, trainer.optimizers[0])

            def on_train_batch_end(self, trainer: Any, module: Any, *rest: Any) -> None:
                if trainer.global_step > len(history) - 1:
                    history.append(snapshot(module.net))

        history = [snapshot(case.student())]
        loader = torch.utils.data.DataLoader(torch.zeros(case.steps * case.accumulate), batch_size=None)
        options = {"strategy": "auto", "devices": 1, **case.strategy()}
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        path = None
        for _, end in spans(case):
            module = Sharded() if options["strategy"] not in ("auto", "ddp") else Module()
            keep = ModelCheckpoint(case.folder, save_top_k=-1, every_n_train_steps=1, filename="{step}")
            use_buffers = not self.uses("use_buffers=False")
            average = WeightAveraging(use_buffers=use_buffers, multi_avg_fn=get_ema_multi_avg_fn(case.momentum))
            trainer = pl.Trainer(
                accelerator="cpu",
                max_steps=end,
                accumulate_grad_batches=case.accumulate,
                callbacks=[average, Watch(), *([keep] if case.resume_after else [])],
                enable_checkpointing=bool(case.resume_after),
                use_distributed_sampler=False,
                default_root_dir=case.folder,
                **options,
                **quiet,
            )
            compiled = case.wrap is not None and options["strategy"] == "auto"
            trainer.fit(torch.compile(module, backend="eager") if compiled else module, loader, ckpt_path=path)
            path = case.folder / f"step={end}.ckpt"
        return Trained(history, snapshot(module.net), module.net)  # at the end the module is the average


HOSTS: dict[str, type[Host]] = {
    host.title: host for host in (Ours, Torch, Timm, EmaPytorch, Lightning, Diffusers, Lightly)
}


def is_installed(host: type[Host]) -> bool:
    return importlib.util.find_spec(host.package.replace("-", "_")) is not None
