"""Where features are collected: in memory, or in a memory-mapped folder that is resumable and never half-valid.

A cached set is the folder `<cache>/<fingerprint>`:

    values.f32    float32 [N, D]
    labels.i64    int64 [N]
    meta.json     sizes, written first
    blocks.u8     one byte per block of rows, 1 once the rows are on disk (only while the folder is `.partial`)

It is filled under the name `<fingerprint>.partial` and renamed when the last block is there, so that a folder with
the final name is always complete. Independent processes that want the same set take turns at it.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sts_core import StateError, distributed
from sts_core.files import locked, write_atomically
from sts_eval.features.samples import labels_of, load_batches, sample_name

NUM_PROBES = 8
"""Samples, evenly spaced, whose pixels show how files are turned into images."""
BLOCKS_PER_FLUSH = 16
"""Blocks that may be lost when the machine (not only the process) goes down."""


def dataset_fingerprint(dataset: Any, salt: str) -> str:
    """A name for what will be extracted: weights and precision in `salt`, and the dataset by its content.

    All pixels and labels count. Only of a dataset that lists both files and labels they are not read: there each file's
    name, size and time of change count, each label, and the pixels of a few samples. The folder does not, so that
    files may be moved. What a dataset says of its content by a method `fingerprint` takes the place of files, too.
    Rank 0 looks and tells the others, whose copies of the files may have other times.
    """
    return str(distributed.broadcast_object(_fingerprint(dataset, salt) if distributed.rank() == 0 else ""))


def _fingerprint(dataset: Any, salt: str) -> str:
    digest = hashlib.sha256(f"{salt} {len(dataset)}".encode())
    listed = _listed(dataset) or _said(dataset)
    digest.update(listed or b"")
    probes = {i * (len(dataset) - 1) // (NUM_PROBES - 1) for i in range(NUM_PROBES)}
    read = range(len(dataset)) if listed is None else sorted(probes)
    for images, labels in load_batches(dataset, [[index] for index in read]):
        digest.update(f"{tuple(images.shape)} {images.dtype} {labels.tolist()}".encode())
        digest.update(images.contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:32]


def _said(dataset: Any) -> bytes | None:
    """What the dataset itself knows of its images and labels: reading millions of them again would take hours."""
    fingerprint = getattr(dataset, "fingerprint", None)
    return str(fingerprint()).encode() if callable(fingerprint) else None


def _listed(dataset: Any) -> bytes | None:
    """A hash of all files' names, sizes and times and of all labels, where the dataset lists both."""
    labels = labels_of(dataset)
    if labels is None:
        return None
    digest = hashlib.sha256(labels.numpy().tobytes())
    for index in range(len(dataset)):
        name = sample_name(dataset, index)
        try:
            facts = os.stat(name)
        except (OSError, ValueError):  # not the name of a file
            return None
        digest.update(
            f"{os.path.basename(name)}\t{facts.st_size}\t{facts.st_mtime_ns}\n".encode(errors="surrogateescape")
        )
    return digest.digest()


class FeatureStore:
    """Rows of features and labels in blocks, kept in memory; ranks exchange them at the end."""

    def __init__(self, size: tuple[int, int], block: int) -> None:
        self.num_rows, self.num_features = size
        self.block = block
        self.values, self.labels = self._allocate()

    def _allocate(self) -> tuple[Tensor, Tensor]:
        return torch.zeros(self.num_rows, self.num_features), torch.zeros(self.num_rows, dtype=torch.int64)

    def indices(self, block: int) -> range:
        """The rows of a block."""
        return range(block * self.block, min((block + 1) * self.block, self.num_rows))

    def missing_blocks(self) -> list[int]:
        """The blocks still to be computed, the same list on every rank."""
        return list(range(-(-self.num_rows // self.block)))

    def write(self, block: int, values: Tensor, labels: Tensor) -> None:
        """Store the rows of a block."""
        rows = self.indices(block)
        self.values[rows.start : rows.stop] = values
        self.labels[rows.start : rows.stop] = labels

    def finish(self) -> tuple[Tensor, Tensor]:
        """All rows, on every rank: those of other ranks are still zero here, so the sum over ranks completes them."""
        distributed.barrier()  # the others may have more blocks, or slower disks
        for rows in torch.split(self.values, 4096):  # bounded messages
            distributed.sum_over_ranks_(rows)
        return self.values, distributed.sum_over_ranks_(self.labels)

    def close(self) -> None:
        """Put down what was computed so far."""


class CachedFeatureStore(FeatureStore):
    """The same in a folder."""

    def __init__(self, folder: Path, size: tuple[int, int], block: int) -> None:
        self.folder, self.partial = folder, folder.with_name(folder.name + ".partial")
        if distributed.rank() == 0:
            self._create(size, block)
        distributed.barrier()
        # After a resume the blocks are those of the first attempt, whatever the batch size is now.
        block = block if self._complete() else self._block(self.partial, size)
        super().__init__(size, block)
        self.done = None if self._complete() else self._map("blocks.u8", np.uint8, (-(-self.num_rows // block),))
        self._unflushed: list[int] = []

    def _complete(self) -> bool:
        return self.folder.is_dir()

    @staticmethod
    def _block(folder: Path, size: tuple[int, int]) -> int:
        """Rows per block, by the meta.json of a folder for features of this size."""
        path = folder / "meta.json"
        try:
            meta = json.loads(path.read_text())
            found, block = tuple(meta["size"]), int(meta["block"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = type(error).__name__
            raise StateError(
                f"a feature cache must have sizes in {path}, it has not ({reason}): delete {folder}"
            ) from None
        if found != size:
            raise StateError(
                f"the features in {folder} must be of size {size}, they are of {found}: delete that folder"
            )
        return block

    @staticmethod
    def _num_bytes(size: tuple[int, int], block: int) -> dict[str, int]:
        return {"values.f32": 4 * size[0] * size[1], "labels.i64": 8 * size[0], "blocks.u8": -(-size[0] // block)}

    def _create(self, size: tuple[int, int], block: int) -> None:
        if self._complete() or (self.partial / "meta.json").is_file():
            self._check(size)
            return
        self.partial.mkdir(parents=True, exist_ok=True)
        for name, num_bytes in self._num_bytes(size, block).items():
            with open(self.partial / name, "wb") as file:
                file.truncate(num_bytes)
        meta = {"format": "sts-features", "version": 1, "size": list(size), "block": block}
        write_atomically(self.partial / "meta.json", json.dumps(meta))

    def _check(self, size: tuple[int, int]) -> None:
        """Refuse damaged files; a memory map would fill up what is missing with zeros."""
        folder = self.folder if self._complete() else self.partial
        expected = self._num_bytes(size, self._block(folder, size))
        if self._complete():
            del expected["blocks.u8"]
        for name, num_bytes in expected.items():
            found = (folder / name).stat().st_size if (folder / name).is_file() else 0
            if found != num_bytes:
                raise StateError(f"{folder / name} must have {num_bytes} bytes, it has {found}: delete {folder}")

    def _map(self, name: str, dtype: type, shape: tuple[int, ...]) -> "np.memmap[Any, Any]":
        # A complete cache is opened copy-on-write: a tensor needs writable memory, the file must never change.
        complete = self._complete()
        return np.memmap((self.folder if complete else self.partial) / name, dtype, "c" if complete else "r+", 0, shape)

    def _allocate(self) -> tuple[Tensor, Tensor]:
        self._values = self._map("values.f32", np.float32, (self.num_rows, self.num_features))
        self._labels = self._map("labels.i64", np.int64, (self.num_rows,))
        return torch.from_numpy(self._values), torch.from_numpy(self._labels)

    def missing_blocks(self) -> list[int]:
        missing = [] if self.done is None else np.flatnonzero(np.asarray(self.done) == 0).tolist()
        distributed.barrier()  # nobody marks a block before everybody has read the list
        return missing

    def write(self, block: int, values: Tensor, labels: Tensor) -> None:
        super().write(block, values, labels)
        self._unflushed.append(block)
        if len(self._unflushed) >= BLOCKS_PER_FLUSH:
            self.close()

    def close(self) -> None:
        """Rows first, marks second: a marked block is on disk."""
        if self.done is not None and self._unflushed:
            self._values.flush()
            self._labels.flush()
            self.done[self._unflushed] = 1
            self.done.flush()
            self._unflushed.clear()

    def finish(self) -> tuple[Tensor, Tensor]:
        self.close()
        distributed.barrier()
        if distributed.rank() == 0 and not self._complete():
            os.replace(self.partial, self.folder)
            (self.folder / "blocks.u8").unlink()
        distributed.barrier()
        self.done = None
        return self._allocate()


@contextmanager
def _our_turn(folder: Path) -> Iterator[None]:
    """Wait while another process fills this set; afterwards it is complete, or resumes where that process failed."""
    with ExitStack() as turn:
        with suppress(OSError):  # a file system without locks
            turn.enter_context(locked(folder.with_name(f".{folder.name}.lock")))
        yield


@contextmanager
def open_store(
    cache: str | Path | None, fingerprint: str, *, size: tuple[int, int], block: int
) -> Iterator[FeatureStore]:
    """A store in memory, or in the folder of this fingerprint; what was computed is kept when the block fails."""
    folder = None if cache is None else Path(cache) / fingerprint
    turn = nullcontext() if folder is None or folder.is_dir() or distributed.rank() > 0 else _our_turn(folder)
    with turn:
        store = FeatureStore(size, block) if folder is None else CachedFeatureStore(folder, size, block)
        try:
            yield store
        finally:
            store.close()
