"""Training the classifiers of a linear probe, and counting what they get right along the way."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from sts_core.errors import StateError
from sts_eval import parallel
from sts_eval.accuracy import count_correct
from sts_eval.features import Features
from sts_eval.heads import ParallelHeads
from sts_eval.linear_config import LinearProbeConfig
from sts_eval.linear_sources import CachedFeatures, TrainingFeatures
from sts_eval.results import write_atomically
from sts_eval.solvers import ridge_regression, softmax_regression

EVALUATION_ROWS = 4096
"""Features per product when correct answers are counted."""


@dataclass
class ProbeRun:
    """What was measured: after each of `epochs`, percent correct [G, len(ks)] per split."""

    epochs: list[int] = field(default_factory=list)
    accuracies: dict[str, list[Tensor]] = field(default_factory=dict)
    heads: ParallelHeads | None = None
    """The classifiers after the last epoch."""

    def add(self, epoch: int, measured: Mapping[str, Tensor]) -> None:
        """Append an evaluation."""
        self.epochs.append(epoch)
        for split, accuracy in measured.items():
            self.accuracies.setdefault(split, []).append(accuracy)


@torch.no_grad()
def percent_correct(heads: ParallelHeads, data: Features, ks: Sequence[int]) -> Tensor:
    """[G, len(ks)], each process counting its share of the rows."""
    device = heads.rates.device
    correct = torch.zeros(heads.num_heads, len(ks), dtype=torch.int64)
    rows = torch.arange(parallel.rank(), len(data), parallel.world_size())
    for part in torch.split(rows, EVALUATION_ROWS):
        logits, labels = heads(data.values[part].to(device)), data.labels[part].to(device)
        correct += torch.stack([count_correct(logits[:, g], labels, ks) for g in range(heads.num_heads)]).cpu()
    return 100.0 * parallel.sum_across_ranks_(correct).double() / len(data)


def train_by_sgd(
    source: TrainingFeatures,
    splits: Mapping[str, Features],
    ks: Sequence[int],
    config: LinearProbeConfig,
    *,
    num_classes: int,
    device: torch.device,
    state_file: Path | None = None,
) -> ProbeRun:
    """All epochs of SGD on all heads, evaluated on every split as often as the config says and after the last."""
    heads = ParallelHeads(config, source.num_features, num_classes, device)
    run = _resume(heads, config, state_file)
    steps_per_epoch = -(-source.num_rows // config.batch_size)
    for epoch in range(run.epochs[-1] if run.epochs else 0, config.epochs):
        for index, (values, labels, count) in enumerate(source.epoch(epoch)):
            factor = config.rate_factor(epoch * steps_per_epoch + index, steps_per_epoch)
            heads.step(values.to(device), labels.to(device), count=count, rate_factor=factor)
        if (epoch + 1) % config.evaluate_every_epochs == 0 or epoch + 1 == config.epochs:
            run.add(epoch + 1, {split: percent_correct(heads, data, ks) for split, data in splits.items()})
            _save(heads, run, config, state_file)
    run.heads = heads
    return run


def _identity(config: LinearProbeConfig) -> str:
    return repr(sorted(asdict(config).items()))


def _save(heads: ParallelHeads, run: ProbeRun, config: LinearProbeConfig, state_file: Path | None) -> None:
    if state_file is None or parallel.rank() != 0:
        return
    measured = {"epochs": run.epochs, "accuracies": run.accuracies}
    state = {"config": _identity(config), "heads": heads.state_dict(), **measured}
    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_atomically(state_file, buffer.getvalue())


def _resume(heads: ParallelHeads, config: LinearProbeConfig, state_file: Path | None) -> ProbeRun:
    parallel.barrier()
    if state_file is None or not state_file.is_file():
        return ProbeRun()
    state = torch.load(state_file, map_location="cpu", weights_only=True)
    if state["config"] != _identity(config):
        raise StateError(f"a probe resumes with the settings it began with, but {state_file} has others: delete it")
    heads.load_state_dict(state["heads"])
    parallel.barrier()  # rank 0 writes the file again only when everybody has read it
    return ProbeRun(state["epochs"], state["accuracies"])


def solve_exactly(
    source: CachedFeatures,
    splits: Mapping[str, Features],
    ks: Sequence[int],
    config: LinearProbeConfig,
    *,
    num_classes: int,
) -> ProbeRun:
    """One classifier per regularisation, each at its optimum, evaluated on every split."""
    solve = softmax_regression if config.solver == "lbfgs" else ridge_regression
    solutions = solve(*source.tensors(), num_classes, config.regularisations)
    heads = ParallelHeads(config, source.num_features, num_classes, torch.device("cpu"))
    with torch.no_grad():
        heads.parameters["weight"].copy_(torch.cat([weight for weight, _ in solutions]))
        heads.parameters["bias"].copy_(torch.cat([bias for _, bias in solutions]))
    run = ProbeRun(heads=heads)
    run.add(1, {split: percent_correct(heads, data, ks) for split, data in splits.items()})
    return run
