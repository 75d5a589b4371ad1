"""Where a linear probe takes its training features from: extracted before, or computed from fresh crops."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sts_core import ConfigError, distributed
from sts_eval.features.extraction import Features, FrozenBackbone
from sts_eval.features.images import AugmentedSamples, CentreCrop
from sts_eval.features.samples import class_names, labels_of, load_batches
from sts_eval.probes.linear.protocol import LinearProbeConfig

HELD_OUT_KEY = 2**40
"""Stands in for the epoch when the held-out part is drawn: no epoch has this number."""


def epoch_order(count: int, seed: int, epoch: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The order of the samples in an epoch: a function of (seed, epoch) only."""
    key = np.array([seed, epoch], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key)).permutation(count)


class TrainingFeatures:
    """Where training features come from."""

    num_rows: int
    num_features: int
    labels: Tensor
    classes: tuple[str, ...] | None
    held_out: Features | None = None
    cropped_from: str | None = None

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor, int]]:
        """This process's share of each batch (what `features` takes, labels), and the size of the whole batch."""
        raise NotImplementedError

    def features(self, batch: Tensor) -> Tensor:
        """The features of a batch."""
        return batch

    def sample(self, count: int) -> Tensor:
        """Features of `count` rows, evenly spaced: the same for the same images, backbone and seed."""
        raise NotImplementedError


class CachedFeatures(TrainingFeatures):
    """Features that were extracted before."""

    def __init__(self, data: Features, config: LinearProbeConfig) -> None:
        self.data, self.config = data, config
        self.num_features, self.classes = data.values.shape[1], data.classes
        order = torch.from_numpy(epoch_order(len(data), config.seed, HELD_OUT_KEY))
        fraction = config.held_out_fraction if len(config.settings) > 1 else 0.0  # one classifier leaves no choice
        kept_back = round(fraction * len(data))
        if fraction and not 0 < kept_back < len(data):
            raise ConfigError(
                f"held_out_fraction must keep back some of the {len(data)} training images and leave some, "
                f"got {config.held_out_fraction}: choose e.g. 0.1"
            )
        self.held_out = Features(data.values[order[:kept_back]], data.labels[order[:kept_back]]) if kept_back else None
        self.rows = order[kept_back:].sort().values
        # SGD trains on the rest alone; an exact solver is refitted on everything once the choice is made.
        self.labels = data.labels[self.rows] if config.solver == "sgd" else data.labels
        self.num_rows = len(self.labels)

    def sample(self, count: int) -> Tensor:
        return self.data.values[self.rows[torch.linspace(0, len(self.rows) - 1, count).long()]]

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor, int]]:
        order = self.rows[torch.from_numpy(epoch_order(self.num_rows, self.config.seed, epoch))]
        for batch in torch.split(order, self.config.batch_size):
            mine = batch[distributed.rank() :: distributed.world_size()]
            yield self.data.values[mine], self.data.labels[mine], len(batch)


class AugmentedFeatures(TrainingFeatures):
    """Features of fresh crops, which are the same for every backbone: the crops of one serve all."""

    def __init__(
        self,
        dataset: Any,
        test_view: CentreCrop,
        config: LinearProbeConfig,
        backbone: FrozenBackbone,
        *,
        labels: Tensor | None = None,
    ) -> None:
        if config.held_out_fraction:
            raise ConfigError(
                f"held_out_fraction needs augment=False, got {config.held_out_fraction} with augment=True: change one"
            )
        self.dataset, self.test_view, self.config, self.backbone = dataset, test_view, config, backbone
        self.num_rows, self.classes = len(dataset), class_names(dataset)
        self.num_features = backbone.num_features(self._samples(0))
        first = dataset[0][0]  # tensors were cropped or resized before, which the published protocols do not do
        self.cropped_from = f"tensors of side {first.shape[-1]}" if isinstance(first, Tensor) else "whole images"
        listed = labels_of(dataset) if labels is None else labels
        self.labels = self._read_labels() if listed is None else listed

    def _read_labels(self) -> Tensor:
        """The labels of a dataset that does not list them: one pass over the images, shared out among the processes."""
        labels = torch.zeros(self.num_rows, dtype=torch.int64)
        mine = torch.arange(distributed.rank(), self.num_rows, distributed.world_size())
        rows = [part.tolist() for part in torch.split(mine, self.config.batch_size)]
        loaded = load_batches(self._samples(0), rows, num_workers=self.backbone.config.num_workers)
        for part, (_, found) in zip(rows, loaded, strict=True):
            labels[part] = found
        return distributed.sum_over_ranks_(labels)

    def _samples(self, epoch: int) -> AugmentedSamples:
        return AugmentedSamples(self.dataset, test_view=self.test_view, seed=self.config.seed, epoch=epoch)

    def sample(self, count: int) -> Tensor:
        rows = torch.linspace(0, self.num_rows - 1, count).long().tolist()
        ((images, _),) = load_batches(self._samples(0), [rows])
        return self.backbone(images)

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor, int]]:
        order = epoch_order(self.num_rows, self.config.seed, epoch)
        whole = [order[i : i + self.config.batch_size] for i in range(0, self.num_rows, self.config.batch_size)]
        mine = [batch[distributed.rank() :: distributed.world_size()].tolist() for batch in whole]
        read = [batch for batch in mine if batch]  # the last batch may be too small for every process to get some of it
        loaded = self.backbone.loaded(self._samples(epoch), read)
        for batch, part in zip(whole, mine, strict=True):
            if part:
                images, labels = next(loaded)
                yield self.backbone.sent(images), labels, len(batch)
            else:
                yield torch.empty(0), torch.empty(0, dtype=torch.int64), len(batch)

    def features(self, batch: Tensor) -> Tensor:
        return self.backbone.on_device(batch) if len(batch) else torch.empty(0, self.num_features)
