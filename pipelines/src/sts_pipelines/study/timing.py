"""The relative-time column of the paper's granularity table, in real training steps, ours and the pseudo-code's.

A step is all of it: two views through student and teacher, backward pass, optimizer, teacher update. The cases take
turns, so that whatever else the machine does falls on all of them, and CPU time of one thread is counted. Each ratio is
to the moving average (TMA) of the same implementation in the same turn.
"""

import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import torch
from torch import Tensor

from sts_core import Granularity, Smoother, SmoothingConfig
from sts_methods import Batch, Byol, ByolConfig, OptimizerConfig, build_optimizer

GRANULARITIES: dict[str, Granularity] = {"LW": "layer", "CW": "channel", "NW": "neuron"}
MOMENTUM, PRESERVE = 0.99, 0.7  # the paper's BYOL: STS repo and section 4.1
Update = Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class TimedNetwork:
    """A training step to be timed."""

    label: str
    backbone: str
    batch_size: int
    rounds: int
    image_size: int = 32
    hidden_dim: int = 4096  # BYOL's heads as on ImageNet: they hold a third of the weights


NETWORKS = (
    TimedNetwork(label="ResNet-18, batch 32", backbone="resnet18", batch_size=32, rounds=10),
    TimedNetwork(label="ResNet-50, batch 8", backbone="resnet50", batch_size=8, rounds=8),
)


class TimedStep:
    """One BYOL student and teacher, shared by all cases: they differ in the update alone."""

    def __init__(self, network: TimedNetwork) -> None:
        config = ByolConfig(backbone=network.backbone, hidden_dim=network.hidden_dim)
        self.method = Byol(config, seed=0).to(memory_format=torch.channels_last)
        self.optimizer = build_optimizer(self.method, OptimizerConfig(lr=1e-3))
        generator = torch.Generator().manual_seed(0)
        shape = (network.batch_size, 3, network.image_size, network.image_size)
        views = tuple(
            torch.randn(shape, generator=generator).contiguous(memory_format=torch.channels_last) for _ in range(2)
        )
        self.batch = Batch(views=views, indices=torch.arange(network.batch_size), step=0)

    def seconds(self, update: Update) -> tuple[float, float]:
        """CPU seconds of a whole step, and of its teacher update."""
        start = time.process_time()
        self.optimizer.zero_grad(set_to_none=True)
        self.method(self.batch).loss.backward()
        self.optimizer.step()
        before = time.process_time()
        update()
        end = time.process_time()
        return end - start, end - before


def ours(method: Byol) -> dict[str, Update]:
    """The smoothers of sts-core."""

    def update(m: float, p: float, granularity: Granularity = "layer") -> Update:
        config = SmoothingConfig(momentum=m, preserve_probability=p, granularity=granularity, buffers="keep")
        return Smoother(student=method.student, teacher=method.teacher, config=config, seed=0).update

    cases = {"TMA": update(MOMENTUM, 0.0)}
    for kind, m in (("SE", 0.0), ("STS", MOMENTUM)):
        cases |= {f"{kind} {short}": update(m, PRESERVE, unit) for short, unit in GRANULARITIES.items()}
    return cases


def pseudo_code(method: Byol) -> dict[str, Update]:
    """The paper's pseudo-code: a loop over tensors, masks by torch.rand, choice by torch.where."""
    students = dict(method.student.named_parameters())
    pairs = [(students[name].detach(), teacher) for name, teacher in method.teacher.named_parameters()]

    def update(m: float, p: float, granularity: Granularity = "layer") -> Update:
        def run() -> None:
            for student, teacher in pairs:
                plain_update_(teacher, student, m=m, p=p, granularity=granularity)

        return run

    cases = {"TMA": update(MOMENTUM, 0.0)}
    for kind, m in (("SE", 0.0), ("STS", MOMENTUM)):
        cases |= {f"{kind} {short}": update(m, PRESERVE, unit) for short, unit in GRANULARITIES.items()}
    return cases


@torch.no_grad()
def plain_update_(teacher: Tensor, student: Tensor, *, m: float, p: float, granularity: Granularity) -> None:
    """One tensor of the pseudo-code; the masks come from torch's global generator, as they do there."""
    if granularity == "layer" and p > 0 and float(torch.rand(())) < p:
        return
    target = m * teacher + (1 - m) * student if m else student
    if granularity == "layer" or p == 0:
        teacher.copy_(target)
        return
    shape = teacher.shape if granularity == "neuron" else (teacher.shape[0], *[1] * (teacher.dim() - 1))
    teacher.copy_(torch.where(torch.rand(shape) < p, teacher, target))


def time_network(network: TimedNetwork) -> dict[str, object]:
    """Steps of all cases in turns: {"ours": {case: {"step": [...], "update": [...]}}, "pseudo-code": ...}."""
    torch.set_num_threads(1)
    step = TimedStep(network)
    cases = {("ours", name): update for name, update in ours(step.method).items()}
    cases |= {("pseudo-code", name): update for name, update in pseudo_code(step.method).items()}
    times: dict[str, dict[str, dict[str, list[float]]]] = {"ours": {}, "pseudo-code": {}}
    with torch.random.fork_rng():
        for turn in range(network.rounds + 1):
            for (implementation, name), update in cases.items():
                seconds = step.seconds(update)
                if turn:  # the first one warms up
                    found = times[implementation].setdefault(name, {"step": [], "update": []})
                    for part, value in zip(("step", "update"), seconds, strict=True):
                        found[part].append(round(value, 5))
    weights = sum(parameter.numel() for parameter in step.method.teacher.parameters())
    return {"network": network.label, "teacher_weights": weights, "machine": machine(), **times}


def ratios(times: Mapping[str, Mapping[str, list[float]]], case: str) -> tuple[float, float, float]:
    """Median and quartiles of a case's step relative to TMA's in the same turn."""
    values = [taken / base for taken, base in zip(times[case]["step"], times["TMA"]["step"], strict=True)]
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, _, high = quantiles(values, n=4, method="inclusive")
    return median(values), low, high


def machine() -> str:
    """Processor, threads and torch."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, one thread, torch {torch.__version__.split('+')[0]}"


def update_milliseconds(times: Mapping[str, Mapping[str, list[float]]], case: str) -> float:
    """Median of the teacher update alone."""
    return 1e3 * median(times[case]["update"])
