"""Which images make up step k: a pure function of (seed, k), so that nothing about the order needs saving.

The global batch is drawn first and then cut into micro-batches and ranks, hence it is the same for 1, 2 or 8 workers,
for any accumulation and after a resume in the middle of an epoch.
"""

from dataclasses import dataclass

import numpy as np

from sts_core import ConfigError
from sts_methods.draws import IntArray, Keys, bounds, permutation


@dataclass(frozen=True, kw_only=True)
class Place:
    """Which part of every global batch belongs to this rank."""

    accumulation: int = 1
    """Micro-batches of an optimizer step."""
    rank: int = 0
    """This worker's number."""
    world_size: int = 1
    """Number of workers."""

    def share(self, keys: Keys, micro: int, *, group: int = 1) -> Keys:
        """This rank's samples of micro-batch `micro`; micro-batches are cut first and do not depend on the ranks.

        Where ranks cannot have equally many, `group` samples go together: 7 unlabelled ones with each labelled one.
        """
        whole = keys.share(part=micro, num_parts=self.accumulation)
        return whole.share(part=self.rank, num_parts=self.world_size, group=group)

    def shares(self, batch_size: int) -> tuple[int, ...] | None:
        """How many samples of a micro-batch each rank has, if that differs; `batch_size` is that of all."""
        micro = batch_size // self.accumulation
        if micro % self.world_size == 0:
            return None
        ends = (bounds(micro, rank, self.world_size) for rank in range(self.world_size))
        return tuple(last - first for first, last in ends)


class StatelessSampler:
    """Global batches in the order f(seed, epoch).

    With `drop_last` every epoch starts at a step, and the images beyond the last full batch sit out that epoch, as in
    the references. Without it one epoch follows another with no gap, which also serves sets smaller than a batch (40
    labels, batch 64). `copies` epochs are shuffled together, so that an image may come again soon, or late.
    """

    def __init__(
        self, *, num_samples: int, batch_size: int, seed: int, stream: int, drop_last: bool, copies: int = 1
    ) -> None:
        if num_samples < 1:
            raise ConfigError(f"a dataset must hold at least one image, got {num_samples}: check the data root")
        if drop_last and num_samples < batch_size:
            raise ConfigError(
                f"the batch must not exceed the dataset, got {batch_size} images a step of {num_samples} in all: "
                "lower global_batch_size (or unlabelled_ratio)"
            )
        self.num_samples, self.batch_size = num_samples, batch_size
        self.steps_per_epoch = max(num_samples // batch_size, 1)
        self._epoch_size = self.steps_per_epoch * batch_size if drop_last else num_samples * copies
        self._seed, self._stream, self._copies = seed, stream, copies
        self._orders: dict[int, IntArray] = {}

    def batch(self, step: int) -> Keys:
        """The samples of the whole global batch at optimizer step `step`."""
        positions = np.arange(step * self.batch_size, (step + 1) * self.batch_size, dtype=np.int64)
        epochs, offsets = np.divmod(positions, self._epoch_size)
        drawn = np.empty_like(positions)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            drawn[chosen] = self.order(int(epoch))[offsets[chosen]]
        copy, indices = np.divmod(drawn, self.num_samples)
        return Keys(indices, epochs * self._copies + copy)  # a copy is augmented as in an epoch of its own

    def order(self, epoch: int) -> IntArray:
        """The order of all images and their copies in `epoch`; the last two orders are kept, steps come in sequence."""
        if epoch not in self._orders:
            while len(self._orders) > 1:
                self._orders.pop(next(iter(self._orders)))
            num = self.num_samples * self._copies
            self._orders[epoch] = permutation(num, seed=self._seed, stream=self._stream, epoch=epoch)
        return self._orders[epoch]
