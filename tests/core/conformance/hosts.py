"""Seven ways to keep a moving average, each driven as its documentation says, on trainings of a few steps."""

import importlib.util
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from sts_core import Smoother, make_teacher, temporal_moving_average

State = dict[str, Tensor]
Wrap = Callable[[nn.Module], nn.Module]


class Net(nn.Module):
    """Two layers of one shape with a norm between them."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(width, width))
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, width)

    def batch(self, step: int, rank: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(2 * step + rank)
        return torch.randn(16, self.norm.num_features, generator=generator).to(self.head.weight.dtype)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.children():
            x = part(x)
        return x


@dataclass(frozen=True, kw_only=True)
class Case:
    """A training: its student, what is done to it, and how long it lasts."""

    student: Callable[[], Net] = Net
    wrap: Wrap | None = None
    """torch.compile, DDP or fully_shard."""
    early: bool = False
    """Whether the average is made before `wrap`, and sharded as the student is."""
    strategy: Callable[[], dict[str, Any]] = dict
    """Options of Lightning's Trainer that do what `wrap` does elsewhere."""
    change: Callable[[int, Net, torch.optim.Optimizer], None] = lambda step, student, optimizer: None
    """Called before every step."""
    momentum: float = 0.5
    steps: int = 4
    accumulate: int = 1
    resume_after: int | None = None
    folder: Path = Path()
    rank: int = 0


class Trained(NamedTuple):
    """What is left of a training."""

    history: list[State]
    """The student at the beginning and after every optimizer step."""
    average: State
    module: nn.Module | None
    """What computes with the average."""


class Host:
    """An average in a plain loop: made by `begin`, moved by `step`."""

    title: ClassVar[str]
    package: ClassVar[str] = "torch"
    follows_optimizers: ClassVar[bool] = False
    """Whether it can call itself after an optimizer's steps."""
    copies_first: ClassVar[bool] = True
    """Whether its first update is a copy, as its documentation says."""
    made_early: ClassVar[bool] = False
    """Whether its documentation or examples make it before the student is wrapped."""
    without_buffers: ClassVar[str] = ""
    """Why it leaves buffers alone, if it does."""
    option_for_shards: ClassVar[str] = ""
    sharded: bool = False
    without_shards: ClassVar[str] = ""
    """What its documentation says, if it rules out sharded students."""

    def begin(self, student: nn.Module, momentum: float) -> None:
        raise NotImplementedError

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Have `step` called after the optimizer's steps."""

    def step(self, student: nn.Module) -> None:
        raise NotImplementedError

    def module(self, student: nn.Module) -> nn.Module:
        raise NotImplementedError

    def state(self) -> Any:
        return self.module(nn.Module()).state_dict()

    def load(self, state: Any) -> None:
        self.module(nn.Module()).load_state_dict(state)

    def train(self, case: Case) -> Trained:
        plain = case.student()
        history = [snapshot(plain)]
        for begin, end in spans(case):
            plain = case.student()
            if case.early:
                self.begin(plain, case.momentum)
            student = case.wrap(plain) if case.wrap else plain
            if not case.early:
                self.begin(student, case.momentum)
            elif case.wrap and isinstance(next(plain.parameters()), DTensor):
                case.wrap(self.module(student))
            optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
            self.follow(optimizer)
            if begin:
                saved = torch.load(case.folder / "resumed.pt")
                plain.load_state_dict(saved["student"])
                optimizer.load_state_dict(saved["optimizer"])
                self.load(saved["average"])
            for step in range(begin, end):
                case.change(step, plain, optimizer)
                student.train()
                for part in range(case.accumulate):
                    loss(student(plain.batch(case.accumulate * step + part, case.rank))).backward()
                optimizer.step()
                optimizer.zero_grad()
                if not self.follows_optimizers:
                    self.step(student)
                history.append(snapshot(plain))
            if end != case.steps:
                state = {"student": plain.state_dict(), "optimizer": optimizer.state_dict(), "average": self.state()}
                torch.save(state, case.folder / "resumed.pt")
        module = self.module(student)
        return Trained(history, snapshot(plain if module is student else module), module)


def spans(case: Case) -> list[tuple[int, int]]:
    """The steps of a training, in one or, where it is resumed, two parts."""
    stops = [0, *([case.resume_after] if case.resume_after else []), case.steps]
    return list(pairwise(stops))


def loss(output: Tensor) -> Tensor:
    return (output.float() - 1).square().mean()


def snapshot(module: nn.Module) -> State:
    """Copies of all parameters and buffers, gathered; tied ones stay one tensor."""
    memo: dict[int, Tensor] = {}
    for tensor in (tensors := module.state_dict(keep_vars=True)).values():
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        memo.setdefault(id(tensor), whole.detach().clone())
    return {name: memo[id(tensor)] for name, tensor in tensors.items()}


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

    def begin(self, student: nn.Module, momentum: float) -> None:
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
    option_for_shards = "foreach=False"

    def begin(self, student: nn.Module, momentum: float) -> None:
        from timm.utils import ModelEmaV3

        self.ema, self.updates = ModelEmaV3(student, decay=momentum, foreach=not self.sharded), 0

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

    def begin(self, student: nn.Module, momentum: float) -> None:
        from ema_pytorch import EMA

        every = {"update_after_step": 0, "update_every": 1, "min_value": momentum}
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

    def begin(self, student: nn.Module, momentum: float) -> None:
        from diffusers.training_utils import EMAModel

        self.ema = EMAModel(student.parameters(), decay=momentum, min_decay=momentum)

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

    def begin(self, student: nn.Module, momentum: float) -> None:
        self.teacher, self.momentum = deepcopy(student), momentum

    @torch.no_grad()
    def step(self, student: nn.Module) -> None:
        from lightly.models.utils import update_momentum

        update_momentum(student, self.teacher, self.momentum)

    def module(self, student: nn.Module) -> nn.Module:
        return self.teacher


class Lightning(Host):
    title, package, follows_optimizers = "Lightning `WeightAveraging`", "lightning", True
    without_shards = "its documentation says that sharded models do not work"

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
            average = WeightAveraging(multi_avg_fn=get_ema_multi_avg_fn(case.momentum))
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
