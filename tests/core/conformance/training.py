"""A training of a few steps in a plain loop, and what a way to keep a moving average must say of itself to be in it."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

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
    options: ClassVar[dict[str, str]] = {}
    """By column: what the package offers where its defaults are not right."""
    column: str = ""
    """The column whose option is used."""
    without_shards: ClassVar[str] = ""
    """What its documentation says, if it rules out sharded students."""

    def uses(self, option: str) -> bool:
        assert option in self.options.values()
        return self.options.get(self.column) == option

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
