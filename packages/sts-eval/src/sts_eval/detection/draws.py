"""Random numbers as pure functions of a key, the same on every machine, worker and numpy or torch version."""

from typing import Literal

import numpy as np
import torch

Purpose = Literal["order", "augmentation", "anchors", "proposals", "layers"]
_PURPOSES: dict[Purpose, int] = {"order": 1, "augmentation": 2, "anchors": 3, "proposals": 4, "layers": 5}


def draw_integers(purpose: Purpose, *key: int, count: int) -> np.ndarray:
    """`count` uniform integers in [0, 2^64) that depend on `purpose` and `key` alone."""
    # Of numpy's random numbers only SeedSequence is promised never to change.
    return np.random.SeedSequence((_PURPOSES[purpose], *key)).generate_state(count, np.uint64)


def draw_seed(purpose: Purpose, *key: int) -> int:
    """A seed in [0, 2^63) for a torch generator."""
    return int(draw_integers(purpose, *key, count=1)[0]) >> 1


def draw_permutation(purpose: Purpose, *key: int, size: int) -> np.ndarray:
    """A uniform permutation of 0 ... size−1."""
    return np.argsort(draw_integers(purpose, *key, count=size), kind="stable")


def draw_subset(purpose: Purpose, *key: int, size: int, count: int) -> torch.Tensor:
    """`count` distinct indices of 0 ... size−1, ascending; all of them if there are no more than `count`."""
    if size <= count:
        return torch.arange(size)
    generator = torch.Generator().manual_seed(draw_seed(purpose, *key))
    return torch.randperm(size, generator=generator)[:count].sort().values
