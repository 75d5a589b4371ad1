import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neighbors import KNeighborsClassifier

from sts_core.errors import ConfigError
from sts_eval import DataError, Features, NeighboursConfig, nearest_neighbours
from sts_eval.probes.neighbours import most_similar


def test_the_vote_equals_scikit_learns_with_the_same_weights(digit_features):
    train, test = digit_features
    result = nearest_neighbours(train, test, NeighboursConfig(ks=(5, 20), temperatures=(0.07, 0.1)))
    for k in (5, 20):
        for temperature in (0.07, 0.1):
            reference = KNeighborsClassifier(
                k,
                metric="cosine",
                algorithm="brute",
                weights=lambda d, t=temperature: torch.tensor(-d / t).exp().numpy(),
            )
            reference.fit(train.values.numpy(), train.labels.numpy())
            expected = 100.0 * reference.score(test.values.numpy(), test.labels.numpy())
            assert result.top1(k, temperature) == pytest.approx(expected, abs=0.12)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 40), st.integers(1, 60), st.integers(1, 20))
def test_searching_in_pieces_finds_what_one_sort_finds(seed, queries, bank, piece):
    generator = torch.Generator().manual_seed(seed)
    wanted = torch.nn.functional.normalize(torch.randn(queries, 6, generator=generator), dim=1)
    rows = torch.randn(bank, 6, generator=generator)
    k = min(7, bank)
    similarities, found = most_similar(wanted, rows, k=k, bank_rows=piece)
    everything = wanted @ torch.nn.functional.normalize(rows, dim=1).T
    expected = everything.sort(1, descending=True).values[:, :k]
    assert torch.allclose(similarities, expected, atol=1e-6)
    assert torch.allclose(everything.gather(1, found), similarities, atol=1e-6)


def test_the_result_does_not_depend_on_the_size_of_the_pieces(digit_features):
    small = NeighboursConfig(query_rows=17, bank_rows=101)
    assert nearest_neighbours(*digit_features, small).accuracies == nearest_neighbours(*digit_features).accuracies


def test_every_image_is_its_own_nearest_neighbour(digit_features):
    train, _ = digit_features
    result = nearest_neighbours(train, train, NeighboursConfig(ks=(1,), temperatures=(0.1,)))
    assert result.top1(1, 0.1) == 100.0


def test_scaling_features_changes_nothing(digit_features):
    train, test = digit_features
    scaled = Features(1000.0 * train.values, train.labels, train.classes)
    assert nearest_neighbours(scaled, test).accuracies == nearest_neighbours(train, test).accuracies


def test_no_temporary_grows_with_the_bank(monkeypatch):
    sizes = []
    original = torch.Tensor.topk

    def watched(self, *arguments, **keywords):
        sizes.append(self.numel())
        return original(self, *arguments, **keywords)

    monkeypatch.setattr(torch.Tensor, "topk", watched)
    labels = torch.arange(4000) % 2
    bank = Features(torch.randn(4000, 4, generator=torch.Generator().manual_seed(0)), labels)
    nearest_neighbours(
        bank, Features(bank.values[:64], labels[:64]), NeighboursConfig(ks=(3,), query_rows=16, bank_rows=50)
    )
    assert max(sizes) == 16 * 50


def test_entries_name_k_and_temperature(digit_features):
    entries = nearest_neighbours(*digit_features).entries("student")
    assert {(e["k"], e["temperature"]) for e in entries} == {(20, 0.07), (20, 0.1), (200, 0.07), (200, 0.1)}
    assert {(e["evaluation"], e["network"], e["which"]) for e in entries} == {("knn", "student", "last")}


def test_impossible_requests_are_refused(digit_features):
    train, test = digit_features
    with pytest.raises(ConfigError, match="choose smaller ks"):
        nearest_neighbours(train, test, NeighboursConfig(ks=(900,)))
    with pytest.raises(ConfigError, match="one backbone"):
        nearest_neighbours(train, Features(test.values[:, :5], test.labels, test.classes))
    with pytest.raises(DataError, match="has none of 0"):
        nearest_neighbours(Features(train.values[train.labels > 0], train.labels[train.labels > 0]), test)
    with pytest.raises(ConfigError):
        NeighboursConfig(temperatures=(0.0,))
    with pytest.raises(ConfigError):
        NeighboursConfig(temperatures=(0.07, float("nan")))


def test_one_neighbour_names_one_class_and_has_no_top5(digit_features):
    result = nearest_neighbours(*digit_features, NeighboursConfig(ks=(1, 5), temperatures=(0.07,)))
    assert {k: set(accuracy) for (k, _), accuracy in result.accuracies.items()} == {1: {1}, 5: {1, 5}}
    metrics = {(entry["k"], entry["metric"]) for entry in result.entries("teacher")}
    assert metrics == {(1, "top1"), (5, "top1"), (5, "top5")}
