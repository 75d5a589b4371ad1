"""Draws, order and label splits: pure functions of their keys."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest

from sts_core import masks
from sts_core.errors import ConfigError
from sts_methods.data.label_split import label_split
from sts_methods.data.sampler import Place, StatelessSampler
from sts_methods.draws import permutation, philox, uniforms, words


def test_philox_gives_the_published_test_vectors() -> None:
    # Random123, kat_vectors: philox4x32 10.
    zeros = philox(np.zeros((4, 1), dtype=np.uint32), 0)
    assert [hex(v) for v in zeros[:, 0]] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]
    ones = philox(np.full((4, 1), 0xFFFFFFFF, dtype=np.uint32), 2**64 - 1)
    assert [hex(v) for v in ones[:, 0]] == ["0x408f276d", "0x41c83b0e", "0xa20bc7c6", "0x6d5451fd"]


def test_philox_is_the_one_of_sts_core() -> None:
    position = torch.arange(5)
    theirs = masks.philox(position, 7 + (9 << 32), 11, 2**40 + 3)
    counter = np.array([np.arange(5), [7] * 5, [9] * 5, [11] * 5], dtype=np.uint32)
    assert np.array_equal(philox(counter, 2**40 + 3), torch.stack(theirs).numpy().astype(np.uint32))


def test_a_draw_does_not_depend_on_the_batch_it_is_computed_in() -> None:
    indices, epochs = np.arange(50), np.arange(50) % 3
    together = words(seed=1, stream=16, epochs=epochs, indices=indices, num=11)
    alone = words(seed=1, stream=16, epochs=epochs[17:18], indices=indices[17:18], num=11)
    assert np.array_equal(together[17:18], alone)
    longer = words(seed=1, stream=16, epochs=epochs, indices=indices, num=30)
    assert np.array_equal(together, longer[:, :11])


@pytest.mark.parametrize("change", [{"seed": 2}, {"stream": 17}, {"epochs": 1}, {"indices": np.arange(1, 2001)}])
def test_every_part_of_the_key_matters(change: dict[str, int]) -> None:
    key = {"seed": 1, "stream": 16, "epochs": 0, "indices": np.arange(2000), "num": 4}
    one, two = uniforms(**key), uniforms(**(key | change))  # type: ignore[arg-type]
    assert (one != two).mean() > 0.999
    assert abs(np.corrcoef(one.ravel(), two.ravel())[0, 1]) < 0.05
    assert kstest(one.ravel(), "uniform").pvalue > 0.001


def test_every_epoch_shows_each_image_at_most_once_in_another_order() -> None:
    sampler = StatelessSampler(num_samples=103, batch_size=10, seed=5, stream=0, drop_last=True)
    epochs = [np.concatenate([sampler.batch(10 * e + k).indices for k in range(10)]) for e in range(2)]
    assert sampler.steps_per_epoch == 10
    assert all(len(set(epoch.tolist())) == 100 for epoch in epochs)
    assert not np.array_equal(epochs[0], epochs[1])
    assert np.array_equal(sampler.batch(13).epochs, np.ones(10))


def test_without_gaps_each_image_comes_once_per_round_even_in_batches_larger_than_the_set() -> None:
    sampler = StatelessSampler(num_samples=7, batch_size=16, seed=5, stream=1, drop_last=False)
    seen = np.concatenate([sampler.batch(k).indices for k in range(7)])
    rounds = np.concatenate([sampler.batch(k).epochs for k in range(7)])
    assert np.array_equal(rounds, np.repeat(np.arange(16), 7))
    assert all(sorted(seen[7 * r : 7 * r + 7]) == list(range(7)) for r in range(16))


def test_many_epochs_shuffled_together_show_each_image_as_often_and_no_copy_twice() -> None:
    sampler = StatelessSampler(num_samples=7, batch_size=16, seed=5, stream=1, drop_last=False, copies=16)
    batches = [sampler.batch(k) for k in range(14)]  # two rounds of 7 x 16
    seen = [pair for keys in batches for pair in zip(keys.indices.tolist(), keys.epochs.tolist(), strict=True)]
    assert sorted(seen[:112]) == [(image, epoch) for image in range(7) for epoch in range(16)]
    assert sorted(seen[112:]) == [(image, epoch) for image in range(7) for epoch in range(16, 32)]
    fresh = StatelessSampler(num_samples=7, batch_size=16, seed=5, stream=1, drop_last=False, copies=16).batch(9)
    assert np.array_equal(fresh.indices, batches[9].indices)
    assert np.array_equal(fresh.epochs, batches[9].epochs)


def test_a_fresh_sampler_in_mid_epoch_continues_as_the_old_one() -> None:
    old = StatelessSampler(num_samples=103, batch_size=10, seed=5, stream=0, drop_last=True)
    batches = [old.batch(k).indices for k in range(37)]
    fresh = StatelessSampler(num_samples=103, batch_size=10, seed=5, stream=0, drop_last=True)
    assert np.array_equal(fresh.batch(33).indices, batches[33])


@settings(max_examples=25, deadline=None)
@given(world_size=st.integers(1, 8), accumulation=st.sampled_from([1, 2, 3]), step=st.integers(0, 40))
def test_ranks_and_micro_batches_tile_the_same_global_batch(world_size: int, accumulation: int, step: int) -> None:
    keys = StatelessSampler(num_samples=100, batch_size=48, seed=0, stream=0, drop_last=True).batch(step)
    places = [Place(accumulation=accumulation, rank=r, world_size=world_size) for r in range(world_size)]
    parts = [place.share(keys, micro).indices for micro in range(accumulation) for place in places]
    assert np.array_equal(np.concatenate(parts), keys.indices)


@pytest.mark.parametrize("world_size", range(4, 9))
def test_a_batch_that_does_not_divide_is_shared_as_evenly_as_can_be_and_labels_keep_their_ratio(
    world_size: int,
) -> None:
    unlabelled = StatelessSampler(num_samples=3000, batch_size=7 * 256, seed=0, stream=0, drop_last=True).batch(3)
    places = [Place(rank=rank, world_size=world_size) for rank in range(world_size)]
    parts = [place.share(unlabelled, 0, group=7) for place in places]
    sizes = [len(part) // 7 for part in parts]
    assert np.array_equal(np.concatenate([part.indices for part in parts]), unlabelled.indices)
    assert [7 * size for size in sizes] == [len(part) for part in parts]
    assert sum(sizes) == 256
    assert max(sizes) - min(sizes) <= 1
    assert places[0].shares(256) == (None if 256 % world_size == 0 else tuple(sizes))


def test_a_batch_larger_than_the_dataset_is_refused() -> None:
    with pytest.raises(ConfigError, match="lower global_batch_size"):
        StatelessSampler(num_samples=9, batch_size=10, seed=0, stream=0, drop_last=True)


def test_a_permutation_is_one_and_looks_random() -> None:
    order = permutation(2000, seed=4, stream=0, epoch=2)
    assert sorted(order) == list(range(2000))
    assert abs(np.corrcoef(order, np.arange(2000))[0, 1]) < 0.1


def labels_of(*sizes: int) -> np.ndarray:
    return np.repeat(np.arange(len(sizes)), sizes)


@settings(max_examples=30, deadline=None)
@given(num_labels=st.integers(4, 80), seed=st.integers(0, 2**63 - 1))
def test_a_label_split_is_balanced(num_labels: int, seed: int) -> None:
    labels = labels_of(40, 25, 20, 33)
    split = label_split(labels, num_labels=num_labels, seed=seed)
    counts = np.bincount(labels[split.indices], minlength=4)
    assert counts.sum() == num_labels == split.num_labels
    assert counts.max() - counts.min() <= 1
    assert len(set(split.indices.tolist())) == num_labels


def test_a_label_split_is_reproducible_nested_and_hashed() -> None:
    labels = labels_of(50, 50)
    small, large = (label_split(labels, num_labels=n, seed=1) for n in (10, 40))
    again, other = (label_split(labels, num_labels=10, seed=s) for s in (1, 2))
    assert np.array_equal(small.indices, again.indices)
    assert small.sha256 == again.sha256
    assert small.sha256 != other.sha256
    assert set(small.indices) < set(large.indices)
    assert small.sha256 != label_split(1 - labels, num_labels=10, seed=1).sha256, "the labels are part of the hash"


@pytest.mark.parametrize("num_labels", [1, 11, 200])
def test_an_impossible_label_split_is_refused(num_labels: int) -> None:
    with pytest.raises(ConfigError, match="choose"):
        label_split(labels_of(50, 5), num_labels=num_labels + (num_labels == 11), seed=0)
