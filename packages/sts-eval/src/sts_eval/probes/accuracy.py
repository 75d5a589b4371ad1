"""Top-k accuracy in percent, with ties and non-finite scores counted as a critical reader would."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sts_core import ConfigError


def ranks_of_labels(scores: Tensor, labels: Tensor) -> Tensor:
    """How many classes stand before the true one, for each row of `scores` [N, C].

    rank = #{c : s_c > s_y} + #{c < y : s_c = s_y}

    so ties go to the lower class index, as in `argmax`: a collapsed network that scores all classes the same gets
    chance accuracy and not 100 %. A row with a NaN has rank C, which is wrong for every k.
    """
    labels = labels.to(scores.device)
    own = scores.gather(1, labels[:, None])
    lower_index = torch.arange(scores.shape[1], device=scores.device) < labels[:, None]
    ranks = ((scores > own) | ((scores == own) & lower_index)).sum(1)
    return ranks.masked_fill(scores.isnan().any(1), scores.shape[1])


def count_correct(scores: Tensor, labels: Tensor, ks: Sequence[int]) -> Tensor:
    """For each k the number of rows whose true class is among the k highest scores, as int64 [len(ks)]."""
    ranks = ranks_of_labels(scores, labels)
    return torch.stack([(ranks < k).sum() for k in ks])


def allowed_ks(num_classes: int, ks: Sequence[int] = (1, 5)) -> tuple[int, ...]:
    """Those of `ks` that mean something with this many classes (top-5 of three classes is always 100 %)."""
    return tuple(k for k in ks if k < num_classes) or (1,)


def top_k_accuracy(scores: Tensor, labels: Tensor, ks: Sequence[int] = (1, 5)) -> dict[int, float]:
    """Percent of rows of `scores` [N, C] whose label [N] is among the k highest scores, for each k."""
    if scores.ndim != 2 or labels.shape != scores.shape[:1] or len(labels) == 0:
        shapes = f"scores {tuple(scores.shape)} and labels {tuple(labels.shape)}"
        raise ConfigError(f"top-k accuracy needs scores [N, C] and labels [N] with N > 0, got {shapes}: reshape them")
    if any(not 1 <= k <= scores.shape[1] for k in ks):
        raise ConfigError(f"k must lie between 1 and the {scores.shape[1]} classes, got {tuple(ks)}")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= scores.shape[1]:
        raise ConfigError(f"labels must lie in 0..{scores.shape[1] - 1}, got {low}..{high}: renumber the classes")
    correct = count_correct(scores, labels, ks)
    return {k: 100.0 * int(count) / len(labels) for k, count in zip(ks, correct, strict=True)}
