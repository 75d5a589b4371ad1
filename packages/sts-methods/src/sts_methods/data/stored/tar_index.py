"""Where the samples of a tar shard lie, found once and kept."""

import io
import logging
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import numpy as np

from sts_core import ConfigError
from sts_core.files import locked, write_atomically
from sts_methods.data.image_folders import IMAGE_SUFFIXES
from sts_methods.data.sources import Layout
from sts_methods.data.stored.storage import Storage, StoredFile, kept
from sts_methods.draws import IntArray

logger = logging.getLogger(__name__)

VERSION = 1  # of the files in the cache
LONGEST_LABEL = 4096  # bytes
THREADS = 8


@dataclass(frozen=True)
class ShardIndex:
    """The samples of one shard, in their order."""

    keys: list[str]
    """Names of the members that hold the images."""
    offsets: IntArray
    """Where the image of each begins in the file."""
    sizes: IntArray
    """Bytes of each image."""
    labels: list[str] | None
    """Text that says the class of each, if there is any."""


def indices_of(storage: Storage, shards: list[StoredFile], layout: Layout) -> list[ShardIndex]:
    """The index of every shard: from the cache where the file has neither another size nor another date."""
    files = [kept(layout, "shards", VERSION, storage.place, f, layout.image, layout.label) for f in shards]
    found = [_saved(file) for file in files]
    if missing := [number for number, index in enumerate(found) if index is None]:
        try:
            with locked(files[0].parent / ".lock"), ThreadPoolExecutor(THREADS) as pool:  # one process does it for all
                logger.info("reading through %d of %d shards, once", len(missing), len(shards))
                made = pool.map(lambda number: _made(storage, layout, shards[number], files[number]), missing)
                for number, index in zip(missing, made, strict=True):
                    found[number] = index
        except OSError as error:
            raise ConfigError(
                f"the index of shards is kept in {files[0].parent}, which cannot be written ({error}): set cache_folder"
            ) from error
    return [index for index in found if index is not None]


def _made(storage: Storage, layout: Layout, shard: StoredFile, file: Path) -> ShardIndex:
    if (index := _saved(file)) is not None:  # by the process that held the lock before
        return index
    try:
        with storage.open(shard.name) as content:
            index = _index(content, shard, layout)
    except (tarfile.TarError, OSError) as error:
        raise ConfigError(
            f"every shard must be a whole tar file, not compressed; {shard.name} is not ({error}): copy it again"
        ) from error
    arrays: dict[str, Any] = {"keys": np.array(index.keys), "offsets": index.offsets, "sizes": index.sizes}
    if index.labels is not None:
        arrays["labels"] = np.array(index.labels)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    write_atomically(file, buffer.getvalue(), durable=False)
    return index


def _saved(file: Path) -> ShardIndex | None:
    """What an earlier run has found, if it is there and whole."""
    try:
        with np.load(file, allow_pickle=False) as saved:
            labels = saved["labels"].tolist() if "labels" in saved else None
            return ShardIndex(saved["keys"].tolist(), saved["offsets"], saved["sizes"], labels)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        return None


@dataclass(frozen=True)
class _Member:
    name: str
    offset: int
    size: int
    text: str | None

    @property
    def key(self) -> str:
        """The name up to the first dot of its last part, which the files of a sample share."""
        path = PurePosixPath(self.name)
        return str(path.with_name(path.name.partition(".")[0]))

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.name).name.partition(".")[2].lower()

    def is_image(self, asked: str | None) -> bool:
        if asked is not None:
            return self.suffix == asked.lower().lstrip(".")
        return PurePosixPath(self.name).suffix.lower() in IMAGE_SUFFIXES


def _index(content: BinaryIO, shard: StoredFile, layout: Layout) -> ShardIndex:
    label = (layout.label or "cls").lower().lstrip(".")
    keys, places, labels = list[str](), list[tuple[int, int]](), list[str | None]()
    for key, members in groupby(_members(content, shard, label), key=lambda member: member.key):
        sample = list(members)
        images = [member for member in sample if member.is_image(layout.image)]
        if len(images) > 1:
            names = ", ".join(member.suffix for member in images)
            raise ConfigError(f"a sample has one image, {key} in {shard.name} has {names}: set image_column to one")
        for image in images:  # a sample without an image is none of ours
            keys.append(image.name)
            places.append((image.offset, image.size))
            labels.append(next((member.text for member in sample if member.suffix == label), None))
    unlabelled = [key for key, text in zip(keys, labels, strict=True) if text is None]
    if unlabelled and (layout.label is not None or len(unlabelled) < len(keys)):
        raise ConfigError(
            f"every sample needs its class in a member {label!r} of the shard, {unlabelled[0]} in {shard.name} has "
            f"none: add it, or set label_column"
        )
    offsets, sizes = np.array(places, dtype=np.int64).reshape(-1, 2).T
    return ShardIndex(keys, offsets, sizes, None if unlabelled else [str(text) for text in labels])


def _members(content: BinaryIO, shard: StoredFile, label: str) -> Iterator[_Member]:
    """The files of samples; nothing is ever unpacked, so that their paths may be anything."""
    for info in regular_files(content, shard.size):
        text = None
        if PurePosixPath(info.name).name.startswith((".", "__")):  # "__": WebDataset's own
            continue
        member = _Member(info.name, info.offset_data, info.size, None)
        if member.suffix == label and info.size <= LONGEST_LABEL:
            content.seek(info.offset_data)
            text = content.read(info.size).decode("utf-8", "replace").strip()
        yield replace(member, text=text)


def regular_files(content: BinaryIO, end: int) -> Iterator[tarfile.TarInfo]:
    """The files of the archive that begins where `content` stands; a TarError unless it is whole at byte `end`."""
    with tarfile.open(fileobj=content, mode="r:") as tar:
        while (info := tar.next()) is not None:
            if not info.isreg() or info.issparse():
                continue
            if info.offset_data + info.size > end:
                raise tarfile.ReadError(f"it ends within {info.name}")
            yield info
        content.seek(tar.offset)
        if content.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):  # the mark of the end; tarfile does not mind
            raise tarfile.ReadError(f"at byte {tar.offset} there is neither a file nor the end")
