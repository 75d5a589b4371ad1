"""Training the classifiers of a linear probe, and counting what they get right along the way."""

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sts_core import StateError, distributed
from sts_core.files import write_atomically
from sts_eval.features.extraction import Features
from sts_eval.probes.accuracy import count_correct
from sts_eval.probes.linear.heads import ParallelHeads
from sts_eval.probes.linear.protocol import LinearProbeConfig
from sts_eval.probes.linear.solvers import ridge_regression, softmax_regression
from sts_eval.probes.linear.sources import CachedFeatures, TrainingFeatures

EVALUATION_ROWS = 4096
"""Features per product when correct answers are counted."""

SAMPLE_ROWS = 16
"""Features of each split, evenly spaced, that a state file keeps to recognise backbone and images by."""


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

    @property
    def selected_on(self) -> str:
        """The split that the choice among classifiers is made on."""
        return "held-out" if "held-out" in self.accuracies else "test"

    @property
    def chosen(self) -> int:
        """The classifier with the highest top-1 on that split after the last epoch, the first of equals."""
        return int(self.accuracies[self.selected_on][-1][:, 0].argmax())


@torch.no_grad()
def percent_correct(heads: ParallelHeads, data: Features, ks: Sequence[int]) -> Tensor:
    """[G, len(ks)], each process counting its share of the rows."""
    device = heads.rates.device
    correct = torch.zeros(heads.num_heads, len(ks), dtype=torch.int64)
    rows = torch.arange(distributed.rank(), len(data), distributed.world_size())
    for part in torch.split(rows, EVALUATION_ROWS):
        logits, labels = heads(data.values[part].to(device)), data.labels[part].to(device)
        correct += torch.stack([count_correct(logits[:, g], labels, ks) for g in range(heads.num_heads)]).cpu()
    return 100.0 * distributed.sum_over_ranks_(correct).double() / len(data)


class SgdProbe:
    """The heads on one backbone, on their way through the epochs; they begin where their state file ends."""

    def __init__(
        self,
        source: TrainingFeatures,
        splits: Mapping[str, Features],
        ks: Sequence[int],
        config: LinearProbeConfig,
        *,
        num_classes: int,
        device: torch.device,
        state_file: Path | None = None,
    ) -> None:
        self.source, self.splits, self.ks, self.config, self.device = source, splits, ks, config, device
        self.heads = ParallelHeads(config, source.num_features, num_classes, device)
        self._state = _StateFile(state_file, config, source, splits["test"])
        self.run = self._state.load(self.heads)
        self.run.heads = self.heads

    @property
    def num_epochs(self) -> int:
        """The epochs after which it was last evaluated, and would resume."""
        return self.run.epochs[-1] if self.run.epochs else 0

    def step(self, batch: Tensor, labels: Tensor, *, count: int, rate_factor: float) -> None:
        """One step on this process's share of a batch of its source."""
        values, labels = self.source.features(batch).to(self.device), labels.to(self.device, non_blocking=True)
        self.heads.step(values, labels, count=count, rate_factor=rate_factor)

    def evaluate(self, epoch: int) -> None:
        """Count the correct answers on every split, and keep what is needed to resume."""
        self.run.add(epoch, {name: percent_correct(self.heads, data, self.ks) for name, data in self.splits.items()})
        self._state.save(self.heads, self.run)


def train_together(probes: Sequence[SgdProbe]) -> None:
    """Train probes of one config, whose sources show the same batches: what the first one reads serves all.

    Each gets exactly the steps that it would take alone. One that resumes waits until the others are as far.
    """
    config, num_rows = probes[0].config, probes[0].source.num_rows
    steps_per_epoch = -(-num_rows // config.batch_size)
    for epoch in range(min(probe.num_epochs for probe in probes), config.epochs):
        taking_part = [probe for probe in probes if probe.num_epochs <= epoch]
        for index, (batch, labels, count) in enumerate(taking_part[0].source.epoch(epoch)):
            factor = config.rate_factor(epoch * steps_per_epoch + index, steps_per_epoch)
            for probe in taking_part:
                probe.step(batch, labels, count=count, rate_factor=factor)
        if (epoch + 1) % config.evaluate_every_epochs == 0 or epoch + 1 == config.epochs:
            for probe in taking_part:
                probe.evaluate(epoch + 1)


class _StateFile:
    """Where a killed probe resumes: one file of rank 0 for one config, the same data and the same backbone."""

    def __init__(
        self, path: Path | None, config: LinearProbeConfig, source: TrainingFeatures, tested: Features
    ) -> None:
        self.path = path if distributed.rank() == 0 else None
        if self.path is not None:
            labels = hashlib.sha256(source.labels.numpy().tobytes() + tested.labels.numpy().tobytes()).hexdigest()
            self.settings = repr((sorted(asdict(config).items()), source.num_rows, len(tested), labels))
            # Features say which backbone made them; up to rounding, since another device may compute the rest.
            rows = torch.linspace(0, len(tested) - 1, SAMPLE_ROWS).long()
            self.sample = torch.cat([tested.values[rows], source.sample(SAMPLE_ROWS)])

    def load(self, heads: ParallelHeads) -> ProbeRun:
        """What was measured so far, with `heads` as they were then; nothing where there is no file.

        Rank 0 reads and tells the others, who may not see its disk.
        """
        state = distributed.broadcast_object(self._found())
        if isinstance(state, StateError):
            raise state
        if state is None:
            return ProbeRun()
        heads.load_state_dict(state["heads"])
        return ProbeRun(state["epochs"], state["accuracies"])

    def _found(self) -> dict[str, Any] | StateError | None:
        """The state in the file, or why it cannot be used: a value, since all ranks must hear of it."""
        if self.path is None or not self.path.is_file():
            return None
        try:
            state = self._read(self.path)
        except StateError as error:
            return error
        if state["settings"] == self.settings and self._is_ours(state["sample"]):
            return state
        return StateError(
            f"a probe resumes with the settings, data and backbone it began with, but {self.path} has others: delete it"
        )

    @staticmethod
    def _read(path: Path) -> dict[str, Any]:
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            return {name: state[name] for name in ("settings", "sample", "heads", "epochs", "accuracies")}
        except Exception as error:  # a damaged file fails in many ways; the remedy is the same
            raise StateError(
                f"a probe resumes from the state that it wrote, but {path} is damaged or of another kind "
                f"({type(error).__name__}): delete it"
            ) from None

    def _is_ours(self, sample: Tensor) -> bool:
        same_shape = sample.shape == self.sample.shape
        return same_shape and torch.allclose(sample, self.sample, rtol=0.0, atol=1e-3 * float(self.sample.abs().max()))

    def save(self, heads: ParallelHeads, run: ProbeRun) -> None:
        """Write all that training needs to resume, on rank 0."""
        if self.path is None:
            return
        measured = {"epochs": run.epochs, "accuracies": run.accuracies}
        buffer = io.BytesIO()
        torch.save({"settings": self.settings, "sample": self.sample, "heads": heads.state_dict(), **measured}, buffer)
        write_atomically(self.path, buffer.getvalue())


def solve_exactly(
    source: CachedFeatures,
    splits: Mapping[str, Features],
    ks: Sequence[int],
    config: LinearProbeConfig,
    *,
    num_classes: int,
    device: torch.device,
) -> ProbeRun:
    """One classifier per regularisation, each at its optimum, evaluated on every split.

    With a held-out part all are fitted to the rest, and the one chosen is fitted again to all training data.
    """
    solve = softmax_regression if config.solver == "lbfgs" else ridge_regression
    values, labels = source.data.values, source.data.labels
    rest = None if source.held_out is None else source.rows
    solutions = solve(values, labels, num_classes, config.regularisations, rows=rest, device=device)
    heads = ParallelHeads(config, source.num_features, num_classes, device)
    run = ProbeRun(heads=heads)
    if source.held_out is not None:
        heads.assign_(solutions)
        held_out = percent_correct(heads, source.held_out, ks)
        run.accuracies["held-out"] = [held_out]
        chosen = config.regularisations[run.chosen]
        (solutions[run.chosen],) = solve(values, labels, num_classes, (chosen,), device=device)
    heads.assign_(solutions)
    run.add(1, {"test": percent_correct(heads, splits["test"], ks)})
    return run
