"""Random numbers that are pure functions of a key: no generator to save, the same for every number of workers.

A draw is addressed by (seed, stream, epoch, index, position) and computed with Philox4x32-10 (Salmon et al., 2011),
vectorised over a batch, so that the augmentation of image 17 in epoch 3 does not depend on who computes it or when.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

UInt32Array = npt.NDArray[np.uint32]
IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

# Streams keep apart what is drawn for different purposes with the same (seed, epoch, index). Views add their number.
ORDER_STREAM = 0
LABELLED_ORDER_STREAM = 1
LABEL_SPLIT_STREAM = 2
TEST_SPLIT_STREAM = 3
VIEW_STREAM = 16
LABELLED_VIEW_STREAM = 1024

# Multipliers and key increments of Philox4x32 (Random123).
_MULTIPLIERS = np.array([0xD2511F53, 0xCD9E8D57], dtype=np.uint64)
_KEY_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


def philox(counter: UInt32Array, seed: int) -> UInt32Array:
    """Philox4x32-10 of each column of `counter` [4, N] under the 64-bit key `seed`: four 32-bit words a column.

    One round maps (c0, c1, c2, c3) to (hi(M1·c2) ^ c1 ^ k0, lo(M1·c2), hi(M0·c0) ^ c3 ^ k1, lo(M0·c0)).
    """
    pair, other = counter[[0, 2]].astype(np.uint64), counter[[1, 3]].astype(np.uint64)
    key = np.array([[seed & 0xFFFFFFFF], [(seed >> 32) & 0xFFFFFFFF]], dtype=np.uint64)
    increments = np.array(_KEY_INCREMENTS, dtype=np.uint64)[:, None]
    multipliers = _MULTIPLIERS[:, None]
    for _ in range(_ROUNDS):
        product = (pair * multipliers)[::-1]
        pair = (product >> _SHIFT) ^ other ^ key
        other = product & _LOW
        key = (key + increments) & _LOW
    return np.stack([pair[0], other[0], pair[1], other[1]]).astype(np.uint32)


def words(*, seed: int, stream: int, epochs: npt.ArrayLike, indices: npt.ArrayLike, num: int) -> UInt32Array:
    """`num` 32-bit words for each (epoch, index), as [N, num]."""
    indices, epochs = np.broadcast_arrays(np.asarray(indices, np.int64), np.asarray(epochs, np.int64))
    num_blocks = -(-num // 4)
    counter = np.empty((4, len(indices), num_blocks), dtype=np.uint32)
    counter[0] = np.arange(num_blocks)
    counter[1] = (indices & 0xFFFFFFFF)[:, None]
    counter[2] = (epochs & 0xFFFFFFFF)[:, None]
    counter[3] = stream
    blocks = philox(counter.reshape(4, -1), seed).reshape(4, len(indices), num_blocks)
    return np.ascontiguousarray(blocks.transpose(1, 2, 0)).reshape(len(indices), -1)[:, :num]


def uniforms(*, seed: int, stream: int, epochs: npt.ArrayLike, indices: npt.ArrayLike, num: int) -> FloatArray:
    """`num` numbers in [0, 1) with 32 bits each for each (epoch, index), as [N, num]."""
    drawn = words(seed=seed, stream=stream, epochs=epochs, indices=indices, num=num)
    return drawn.astype(np.float64) * 2.0**-32


def permutation(num: int, *, seed: int, stream: int, epoch: int = 0) -> IntArray:
    """A random order of 0..num-1: the argsort of one 64-bit draw per index."""
    draws = words(seed=seed, stream=stream, epochs=epoch, indices=np.arange(num), num=2).astype(np.uint64)
    return np.argsort((draws[:, 0] << _SHIFT) | draws[:, 1], kind="stable").astype(np.int64)


ByteImage = npt.NDArray[np.uint8]
"""uint8 [H, W, 3], RGB."""


@dataclass(frozen=True)
class Keys:
    """What identifies the samples of a batch: the image and the epoch in which it is seen, both [N]."""

    indices: IntArray
    epochs: IntArray

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, part: slice) -> "Keys":
        return Keys(self.indices[part], self.epochs[part])

    def share(self, *, part: int, num_parts: int, group: int = 1) -> "Keys":
        """The `part`-th of `num_parts` contiguous pieces of nearly equal size; `group` samples stay together."""
        first, last = (group * bound for bound in bounds(len(self) // group, part, num_parts))
        return self[first:last]


def bounds(num: int, part: int, num_parts: int) -> tuple[int, int]:
    """Where the `part`-th of `num_parts` nearly equal pieces of `num` things begins and ends."""
    return num * part // num_parts, num * (part + 1) // num_parts
