"""Losses against slow references written from the papers, image by image."""

import math

import pytest
import torch
from torch import Tensor

from sts_methods.methods.losses import cosine_distance, cross_view_entropy, info_nce, pseudo_label_loss, softmax_mse


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def unit_rows(*shape: int, seed: int = 0) -> Tensor:
    rows = normal(*shape, seed=seed)
    return torch.nn.functional.normalize(rows, dim=1)


def softmax(row: list[float]) -> list[float]:
    exponentials = [math.exp(value - max(row)) for value in row]
    return [value / sum(exponentials) for value in exponentials]


def test_cosine_distance_is_the_squared_distance_of_normalised_vectors() -> None:
    a, b = normal(5, 7), normal(5, 7, seed=1)
    slow = 0.0
    for x, y in zip(a.tolist(), b.tolist(), strict=True):
        nx, ny = math.sqrt(sum(v * v for v in x)), math.sqrt(sum(v * v for v in y))
        slow += sum((v / nx - w / ny) ** 2 for v, w in zip(x, y, strict=True))
    assert cosine_distance(a, b).item() == pytest.approx(slow / 5, rel=1e-5)
    assert cosine_distance(a, 3.0 * a).item() == pytest.approx(0.0, abs=1e-6)
    assert cosine_distance(a, -a).item() == pytest.approx(4.0, rel=1e-6)


def test_info_nce_equals_the_negative_log_probability_of_the_positive_key() -> None:
    queries, keys, negatives = unit_rows(4, 6), unit_rows(4, 6, seed=1), unit_rows(9, 6, seed=2)
    temperature, slow, nearest = 0.2, 0.0, 0
    for q, k in zip(queries.tolist(), keys.tolist(), strict=True):
        scores = [sum(a * b for a, b in zip(q, other, strict=True)) / temperature for other in [k, *negatives.tolist()]]
        slow -= math.log(softmax(scores)[0])
        nearest += scores[0] == max(scores)
    loss, accuracy = info_nce(queries, keys, negatives, temperature=temperature)
    assert loss.item() == pytest.approx(slow / 4, rel=1e-5)
    assert accuracy.item() == pytest.approx(nearest / 4)


def test_info_nce_has_the_gradient_of_cross_entropy_on_joined_logits() -> None:
    keys, negatives = unit_rows(4, 6, seed=1), unit_rows(9, 6, seed=2)
    ours, joined = unit_rows(4, 6).requires_grad_(), unit_rows(4, 6).requires_grad_()
    torch.autograd.backward(info_nce(ours, keys, negatives, temperature=0.2)[0])
    logits = torch.cat([(joined * keys).sum(1, keepdim=True), joined @ negatives.T], dim=1) / 0.2
    torch.autograd.backward(torch.nn.functional.cross_entropy(logits, torch.zeros(4, dtype=torch.long)))
    torch.testing.assert_close(ours.grad, joined.grad, rtol=1e-5, atol=1e-7)


def test_info_nce_is_finite_for_the_sharpest_temperatures() -> None:
    rows = unit_rows(4, 6)
    loss, _ = info_nce(rows, rows, -rows, temperature=0.001)
    assert torch.isfinite(loss)


def test_pseudo_label_loss_counts_only_confident_images_but_averages_over_all() -> None:
    weak, strong = 3.0 * normal(6, 4), normal(6, 4, seed=1)
    threshold, slow, confident = 0.8, 0.0, 0
    for w, s in zip(weak.tolist(), strong.tolist(), strict=True):
        probabilities = softmax(w)
        if max(probabilities) >= threshold:
            confident += 1
            slow -= math.log(softmax(s)[probabilities.index(max(probabilities))])
    assert 0 < confident < 6  # otherwise this test would not see the mask
    loss, share = pseudo_label_loss(strong, weak, threshold=threshold)
    assert loss.item() == pytest.approx(slow / 6, rel=1e-5)
    assert share.item() == pytest.approx(confident / 6)


def test_pseudo_labels_carry_no_gradient() -> None:
    weak, strong = (3.0 * normal(6, 4)).requires_grad_(), normal(6, 4, seed=1).requires_grad_()
    torch.autograd.backward(pseudo_label_loss(strong, weak, threshold=0.0)[0])
    assert weak.grad is None
    assert strong.grad is not None


def test_softmax_mse_is_the_mean_squared_difference_of_probabilities() -> None:
    student, teacher = normal(5, 3).requires_grad_(), normal(5, 3, seed=1).requires_grad_()
    slow = 0.0
    for s, t in zip(student.tolist(), teacher.tolist(), strict=True):
        slow += sum((a - b) ** 2 for a, b in zip(softmax(s), softmax(t), strict=True))
    loss = softmax_mse(student, teacher)
    torch.autograd.backward(loss)
    assert loss.item() == pytest.approx(slow / 15, rel=1e-5)
    assert teacher.grad is None


def test_cross_view_entropy_averages_over_all_pairs_of_different_views() -> None:
    student, teacher = normal(5, 3, 4), normal(2, 3, 4, seed=1).softmax(dim=2)
    slow, pairs = 0.0, 0
    for g in range(2):
        for v in range(5):
            if v == g:
                continue
            pairs += 1
            for n in range(3):
                log_probabilities = [math.log(p) for p in softmax(student[v, n].tolist())]
                products = (t * s for t, s in zip(teacher[g, n].tolist(), log_probabilities, strict=True))
                slow -= sum(products) / 3
    assert cross_view_entropy(student, teacher).item() == pytest.approx(slow / pairs, rel=1e-5)


def test_losses_stay_in_full_precision_under_autocast() -> None:
    queries, keys, negatives = unit_rows(4, 64), unit_rows(4, 64, seed=1), unit_rows(50, 64, seed=2)
    expected, _ = info_nce(queries, keys, negatives, temperature=0.2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, _ = info_nce(queries, keys, negatives, temperature=0.2)
    assert torch.equal(loss, expected)
