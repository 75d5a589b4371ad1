import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sts_core.errors import ConfigError
from sts_eval import top_k_accuracy
from sts_eval.probes.accuracy import allowed_ks


@given(st.integers(0, 10_000), st.integers(1, 30), st.integers(2, 12))
def test_top_k_equals_a_sort_of_each_row(seed: int, rows: int, classes: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(rows, classes, generator=generator).round(decimals=1)  # with ties
    labels = torch.randint(classes, (rows,), generator=generator)
    k = min(3, classes)
    right = 0
    for row, label in zip(scores.tolist(), labels.tolist(), strict=True):
        order = sorted(range(classes), key=lambda c: (-row[c], c))
        right += label in order[:k]
    assert top_k_accuracy(scores, labels, (k,))[k] == pytest.approx(100 * right / rows)


def test_a_network_that_scores_all_classes_the_same_gets_chance_accuracy() -> None:
    labels = torch.arange(10).repeat(5)
    assert top_k_accuracy(torch.zeros(50, 10), labels) == {1: 10.0, 5: 50.0}


def test_a_row_with_a_nan_is_wrong_for_every_k() -> None:
    scores = torch.tensor([[float("nan"), 0.0], [1.0, 0.0]])
    assert top_k_accuracy(scores, torch.tensor([0, 0]), (1, 2)) == {1: 50.0, 2: 50.0}


def test_all_classes_are_always_right() -> None:
    assert top_k_accuracy(torch.randn(7, 4), torch.tensor([0, 1, 2, 3, 0, 1, 2]), (4,)) == {4: 100.0}


def test_top_5_is_not_offered_where_it_says_nothing() -> None:
    assert allowed_ks(10) == (1, 5)
    assert allowed_ks(5) == (1,)


@pytest.mark.parametrize(("shape", "labels", "k"), [((3, 4), 2, 1), ((0, 4), 0, 1), ((3, 4), 3, 5), ((3, 4), 3, 0)])
def test_impossible_requests_are_refused(shape: tuple[int, int], labels: int, k: int) -> None:
    with pytest.raises(ConfigError):
        top_k_accuracy(torch.zeros(shape), torch.zeros(labels, dtype=torch.int64), (k,))


@pytest.mark.parametrize("label", [-1, 4])
def test_labels_outside_the_classes_are_refused(label: int) -> None:
    with pytest.raises(ConfigError, match=r"must lie in 0\.\.3"):
        top_k_accuracy(torch.zeros(2, 4), torch.tensor([0, label]), (1,))
