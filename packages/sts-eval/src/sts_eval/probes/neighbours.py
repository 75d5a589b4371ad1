"""k-nearest-neighbour evaluation with a similarity-weighted vote, in memory that does not grow with the bank."""

from dataclasses import dataclass
from math import inf
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sts_core import ConfigError, distributed
from sts_eval.evaluations import Evaluation, Metric, register_evaluation
from sts_eval.features.extraction import Features
from sts_eval.features.samples import check_labels, check_same_classes
from sts_eval.probes.accuracy import allowed_ks, count_correct

NEIGHBOURS = register_evaluation(
    Evaluation(
        name="knn",
        title="Nearest neighbours",
        column="k-NN",
        metrics=(Metric("top1", "top-1"), Metric("top5", "top-5")),
        place=20,
        headline=3,
        identity=("k", "temperature", "data"),
        only_last=True,
        trains_nothing=True,
        in_training=True,
    )
)


@dataclass(frozen=True, kw_only=True)
class NeighboursConfig:
    """Which votes are counted; every pair of k and temperature is, from one search."""

    ks: tuple[int, ...] = (20, 200)  # 20: DINO; 200: instance discrimination and lightly
    """Numbers of neighbours that vote."""
    temperatures: tuple[float, ...] = (0.07, 0.1)  # .07: instance discrimination, DINO; .1: lightly
    """T of the vote's weight exp(similarity / T)."""
    query_rows: int = 1024
    """Test features searched at once."""
    bank_rows: int = 16384
    """Training features compared at once: temporary memory is about 4 · query_rows · bank_rows bytes (64 MB)."""
    allow_missing_classes: bool = False
    """Accept training or test data in which some class has no image."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ks", tuple(self.ks))
        object.__setattr__(self, "temperatures", tuple(self.temperatures))
        if not self.ks or min(self.ks) < 1 or not self.temperatures or not all(0 < t < inf for t in self.temperatures):
            raise ConfigError(
                f"ks and temperatures must be positive and finite, got {self.ks} and {self.temperatures}: "
                "pass (20,) and (0.07,)",
                fields=("ks", "temperatures"),
            )
        if min(self.query_rows, self.bank_rows) < 1:
            got = f"{self.query_rows} and {self.bank_rows}"
            raise ConfigError(
                f"query_rows and bank_rows must be at least 1, got {got}: raise them",
                fields=("query_rows", "bank_rows"),
            )


@dataclass(frozen=True)
class NeighboursResult:
    """Percent correct by (k, temperature), then by top-k."""

    accuracies: dict[tuple[int, float], dict[int, float]]
    config: NeighboursConfig
    num_train: int
    num_test: int

    def top1(self, k: int, temperature: float) -> float:
        """Top-1 of one vote."""
        return self.accuracies[k, temperature][1]

    def entries(self, network: str) -> list[dict[str, Any]]:
        """The rows for results.json; nothing is trained, so last is all there is."""
        common = {"evaluation": NEIGHBOURS.name, "network": network, "which": "last"}
        sizes = {"num_train": self.num_train, "num_test": self.num_test}
        return [
            {**common, "metric": f"top{top}", "value": value, "k": k, "temperature": temperature, **sizes}
            for (k, temperature), accuracy in self.accuracies.items()
            for top, value in accuracy.items()
        ]


def nearest_neighbours(
    train: Features, test: Features, config: NeighboursConfig | None = None, *, device: torch.device | str = "cpu"
) -> NeighboursResult:
    """Classify each test feature by a vote of its k most similar training features.

    score(c) = Σ_{i in the k nearest, y_i = c} exp(cos(x, x_i) / T)

    k and T are those of `config`. `train` and `test` are searched on `device`; under `torch.distributed` each process
    searches for its share of the test features.

    >>> labels = torch.arange(100) % 2
    >>> train = test = Features(torch.stack([labels, 1 - labels], dim=1), labels)
    >>> nearest_neighbours(train, test, NeighboursConfig(ks=(20,), temperatures=(0.07,))).top1(20, 0.07)
    100.0
    """
    config = config or NeighboursConfig()
    num_classes = _check(train, test, config)
    tops = allowed_ks(num_classes)
    votes = [(k, temperature) for k in config.ks for temperature in config.temperatures]
    correct = torch.zeros(len(votes), len(tops), dtype=torch.int64)
    mine = torch.arange(distributed.rank(), len(test), distributed.world_size())
    for rows in torch.split(mine, config.query_rows):
        queries = F.normalize(test.values[rows].to(device), dim=1)
        similarities, found = most_similar(queries, train.values, k=max(config.ks), bank_rows=config.bank_rows)
        labels, answers = test.labels[rows].to(device), train.labels.to(device)[found]
        for v, (k, temperature) in enumerate(votes):
            scores = vote(similarities[:, :k], answers[:, :k], num_classes, temperature)
            correct[v] += count_correct(scores, labels, tops).cpu()
    percent = 100.0 * distributed.sum_over_ranks_(correct).double() / len(test)
    # Fewer than five neighbours cannot name five classes: the rest would be filled up by class index.
    accuracies = {
        (k, temperature): {top: float(percent[v, i]) for i, top in enumerate(tops) if top <= k}
        for v, (k, temperature) in enumerate(votes)
    }
    return NeighboursResult(accuracies, config, len(train), len(test))


def most_similar(queries: Tensor, bank: Tensor, *, k: int, bank_rows: int) -> tuple[Tensor, Tensor]:
    """Cosine similarities and row numbers [Q, k] of the k nearest rows of `bank`, nearest first.

    `queries` are normalised, `bank` need not be; it is read in pieces and may be memory-mapped. Each piece's k best
    are merged with the k best so far.
    """
    best = queries.new_empty(len(queries), 0)
    found = torch.empty(len(queries), 0, dtype=torch.int64, device=queries.device)
    for start in range(0, len(bank), bank_rows):
        piece = F.normalize(bank[start : start + bank_rows].to(queries.device), dim=1)
        values, rows = (queries @ piece.T).topk(min(k, len(piece)), dim=1, sorted=False)
        best, found = torch.cat([best, values], 1), torch.cat([found, rows + start], 1)
        best, order = best.topk(min(k, best.shape[1]), dim=1)
        found = found.gather(1, order)
    return best, found


def vote(similarities: Tensor, answers: Tensor, num_classes: int, temperature: float) -> Tensor:
    """Scores [Q, C] of the classes `answers` [Q, k]; cos − 1 in the exponent only scales, and cannot overflow."""
    weights = ((similarities - 1.0) / temperature).exp()
    return weights.new_zeros(len(weights), num_classes).scatter_add_(1, answers, weights)


def _check(train: Features, test: Features, config: NeighboursConfig) -> int:
    """Raise where bank and queries do not belong together; the number of classes."""
    check_same_classes(train.classes, test.classes)
    if max(config.ks) > len(train):
        raise ConfigError(f"k must not exceed the {len(train)} training features, got {config.ks}: choose smaller ks")
    if train.values.shape[1] != test.values.shape[1]:
        sizes = f"{train.values.shape[1]} and {test.values.shape[1]}"
        raise ConfigError(f"training and test features must have the same width, got {sizes}: use one backbone")
    names, num_classes = train.classes or test.classes, max(train.num_classes, test.num_classes)
    for split, labels in (("training", train.labels), ("test", test.labels)):
        check_labels(labels, num_classes, split=split, names=names, allow_missing=config.allow_missing_classes)
    return num_classes
