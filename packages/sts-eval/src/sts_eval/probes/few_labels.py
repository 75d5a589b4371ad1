"""Classification with few labels (FixMatch): teacher and student over the checkpoints given, last, best and median."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import nn

from sts_core import ConfigError
from sts_eval.evaluations import Evaluation, Metric, register_evaluation
from sts_eval.features.extraction import FeatureConfig, FrozenBackbone
from sts_eval.features.samples import check_labels, class_names, load_batches
from sts_eval.features.unchanged import unchanged
from sts_eval.probes.accuracy import allowed_ks, count_correct

LAST_CHECKPOINTS = 20  # google-research/fixmatch reports the median of the last 20 checkpoints
FEW_LABELS = register_evaluation(
    Evaluation(
        name="few-labels",
        title="Classification with few labels",
        column="top-1",
        metrics=(Metric("top1", "top-1"), Metric("top1-median", "top-1, median of last checkpoints")),
        place=30,
        headline=2,
        trains_nothing=True,
        in_training=True,
    )
)


@dataclass(frozen=True)
class CheckpointAccuracy:
    """Percent correct of one network at one checkpoint."""

    step: int
    network: str
    """`teacher` or `student`."""
    top1: float


@dataclass(frozen=True)
class FewLabelsResult:
    """One network's accuracy in the three ways in which the literature reports it, over the checkpoints given."""

    network: str
    last: float
    best: float
    """Highest of the `num_checkpoints` given, on the test data. Optimistic.

    LeeDoYup's and USB's best is over all checkpoints of a run; a run that keeps its last 20 gives the best of those.
    """
    median_of_last: float
    """Median of the last `num_in_median` checkpoints: FixMatch's authors."""
    num_in_median: int
    num_checkpoints: int
    """How many checkpoints were looked at, for `best` as for the rest."""

    def entries(self) -> list[dict[str, Any]]:
        """The rows for results.json."""
        details = {"num_in_median": self.num_in_median, "num_checkpoints": self.num_checkpoints}
        common = {"evaluation": FEW_LABELS.name, "network": self.network, **details}
        return [
            {**common, "metric": "top1", "value": self.last, "which": "last"},
            {**common, "metric": "top1", "value": self.best, "which": "best"},
            {**common, "metric": "top1-median", "value": self.median_of_last, "which": "last"},
        ]


def classification_accuracy(
    model: nn.Module, dataset: Any, config: FeatureConfig | None = None, *, device: torch.device | str | None = None
) -> dict[int, float]:
    """Percent correct by k of a classifier that maps images to logits, which is left as it was."""
    config = config or FeatureConfig()
    if len(dataset) == 0:
        raise ConfigError("a dataset must hold at least one image to have an accuracy, got none: check its folder")
    names = class_names(dataset)
    correct = torch.zeros(0)
    rows = torch.split(torch.arange(len(dataset)), config.batch_size)
    with unchanged(model):
        network = FrozenBackbone(model, config, device)
        for images, labels in load_batches(dataset, [part.tolist() for part in rows], num_workers=config.num_workers):
            logits = network(images)
            if names is not None and logits.shape[1] != len(names):
                raise ConfigError(
                    f"the network must be a classifier with one output per class, got {logits.shape[1]} outputs for "
                    f"{len(names)} classes (a self-supervised backbone?): use the linear evaluation"
                )
            check_labels(labels, logits.shape[1], split="test", allow_missing=True)
            ks = allowed_ks(logits.shape[1])
            correct = count_correct(logits, labels, ks) + (correct if len(correct) else 0)
    return {k: 100.0 * int(count) / len(dataset) for k, count in zip(ks, correct, strict=True)}


def evaluate_checkpoints(
    checkpoints: Iterable[tuple[int, Mapping[str, nn.Module]]],
    dataset: Any,
    config: FeatureConfig | None = None,
    *,
    device: torch.device | str | None = None,
) -> list[CheckpointAccuracy]:
    """Top-1 of each network of each (step, {"teacher": classifier, "student": classifier}), one at a time in memory."""
    return [
        CheckpointAccuracy(step, network, classification_accuracy(model, dataset, config, device=device)[1])
        for step, models in checkpoints
        for network, model in models.items()
    ]


def few_labels(
    records: Sequence[CheckpointAccuracy], *, last_checkpoints: int = LAST_CHECKPOINTS
) -> list[FewLabelsResult]:
    """Sum up the checkpoints of one run that were kept, teacher first.

    Fewer than `last_checkpoints` are all taken for the median, and counted.
    """
    if not records or last_checkpoints < 1:
        got = f"{len(records)} records and last_checkpoints={last_checkpoints}"
        raise ConfigError(f"a summary needs at least one checkpoint, got {got}: evaluate some checkpoints first")
    results = []
    for network in sorted({record.network for record in records}, reverse=True):
        by_step = {record.step: record.top1 for record in records if record.network == network}
        values = [by_step[step] for step in sorted(by_step)]
        tail = values[-last_checkpoints:]
        results.append(FewLabelsResult(network, values[-1], max(values), median(tail), len(tail), len(values)))
    return results
