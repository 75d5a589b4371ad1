"""WebDataset: samples in tar shards, each of which is read by itself, wherever in its shard it lies."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sts_core import ConfigError
from sts_core.files import is_uri
from sts_methods.data.sources import Layout, Paths, Split, StoredImages
from sts_methods.data.stored.classes import numbered
from sts_methods.data.stored.storage import Storage, of_split, public
from sts_methods.data.stored.tar_index import ShardIndex, indices_of
from sts_methods.draws import IntArray


@dataclass(frozen=True)
class ShardImages(StoredImages):
    """Images in tar shards: shard after shard by name, in each in the order of its members."""

    storage: Storage
    """Where the shards lie."""
    shards: tuple[str, ...]
    """Their names."""
    ends: IntArray
    """How many images there are up to the end of each shard."""
    keys: Paths
    """Names of the members."""
    offsets: IntArray
    """Where in its shard each image begins."""
    sizes: IntArray
    """Bytes of each image."""
    labels: IntArray | None
    classes: tuple[str, ...] | None

    @property
    def waits(self) -> bool:
        """In an object store."""
        return is_uri(self.storage.root)

    def __len__(self) -> int:
        return len(self.keys)

    def fingerprint(self) -> str:
        """Number and hash of members' names and sizes and of labels: other shards of the same samples count alike."""
        return self.keys.fingerprint(self.sizes, self.labels)

    def name(self, index: int) -> str:
        """Its shard and its name there."""
        return f"{self.keys[index]} in {self._shard(index)}"

    def encoded(self, index: int) -> bytes:
        """Its bytes of the shard, and no others."""
        return self.storage.read(self._shard(index), int(self.offsets[index]), int(self.sizes[index]))

    def _shard(self, index: int) -> str:
        return self.shards[int(np.searchsorted(self.ends, index, side="right"))]


def shard_images(root: str, split: Split, layout: Layout) -> ShardImages:
    """The shards of a split; the classes are those of the training set."""
    storage = Storage(root)
    files = storage.files(".tar")
    if not files:
        raise ConfigError(f"dataset 'webdataset' needs tar shards, got none in {public(root)}: check root")
    shards = of_split(files, layout, split, root)
    found = indices_of(storage, shards, layout)
    ends = np.cumsum([len(index.keys) for index in found])
    if not ends[-1]:
        raise ConfigError(f"the {len(shards)} shards of {public(root)} hold no image: check root and image_column")
    texts, labels, classes = _texts(found), None, None
    if texts is not None:
        known = texts
        if split != "train" and (training := of_split(files, layout, "train", root, needed=False)):
            known = _texts(indices_of(storage, training, layout)) or texts
        labels, classes = numbered(texts, known, public(root))
    return ShardImages(
        storage, tuple(file.name for file in shards), ends, Paths(key for index in found for key in index.keys),
        np.concatenate([index.offsets for index in found]), np.concatenate([index.sizes for index in found]),
        labels, classes,
    )  # fmt: skip


def _texts(found: Sequence[ShardIndex]) -> list[str] | None:
    """What says the class of each image, if all shards have it."""
    if any(index.labels is None for index in found):
        return None
    return [text for index in found for text in index.labels or ()]
