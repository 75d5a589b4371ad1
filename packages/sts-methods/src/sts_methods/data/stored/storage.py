"""Folders of large files, on this machine or in an object store, of which parts are read."""

import hashlib
import io
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from sts_core import ConfigError
from sts_core.files import is_uri
from sts_methods.data.image_files import reason_of
from sts_methods.data.sources import Layout, Split

READ_AHEAD = 8 * 2**20  # bytes: a scan of shards in an object store asks for as much at a time
SPLIT_NAMES: dict[Split, tuple[str, ...]] = {
    "train": ("train", "training"),
    "test": ("validation", "val", "valid", "test"),
}


@dataclass(frozen=True)
class StoredFile:
    """A file as it was when it was listed."""

    name: str
    """Its path below the root."""
    size: int
    changed: int
    """When it was last changed, in nanoseconds."""


@dataclass(frozen=True)
class Storage:
    """A folder, or a prefix of an object store such as s3://bucket/imagenet; every process opens it for itself."""

    root: str

    @property
    def place(self) -> str:
        """The root, wherever the process was started."""
        return self.root if is_uri(self.root) else os.path.abspath(self.root)

    def files(self, *suffixes: str) -> list[StoredFile]:
        """Everything below the root whose name ends so, sorted by name."""
        found = self._remote_files() if is_uri(self.root) else self._local_files()
        return sorted((file for file in found if file.name.endswith(suffixes)), key=lambda file: file.name)

    def open(self, name: str) -> BinaryIO:
        """A file to read from the start to the end."""
        if not is_uri(self.root):
            return open(self.path(name), "rb")
        return io.BufferedReader(_remote_file(os.getpid(), self.root, name, fresh=True), READ_AHEAD)

    def read(self, name: str, offset: int, size: int) -> bytes:
        """A part of a file, or an OSError if it is not all there."""
        if is_uri(self.root):
            data: bytes = _remote_file(os.getpid(), self.root, name).read_at(size, offset)
        else:
            with open(self.path(name), "rb", buffering=0) as file:
                file.seek(offset)
                data = file.read(size)
        if len(data) != size:
            raise OSError(f"{size} bytes from byte {offset} on were to be read, there are {len(data)}")
        return data

    def path(self, name: str) -> Path:
        """Where a file of a folder lies."""
        return Path(self.root) / name

    def _local_files(self) -> list[StoredFile]:
        found = []
        for base, _, names in os.walk(self.root, followlinks=True):
            for path in (os.path.join(base, name) for name in names if not name.startswith(".")):
                facts = os.stat(path)
                found.append(StoredFile(os.path.relpath(path, self.root), facts.st_size, facts.st_mtime_ns))
        return found

    def _remote_files(self) -> list[StoredFile]:
        fs = pyarrow_fs()
        try:
            system, base = _remote(os.getpid(), self.root)
            found = system.get_file_info(fs.FileSelector(base, recursive=True, allow_not_found=True))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{public(self.root)} cannot be listed ({reason_of(error)}): check root, the network and credentials"
            ) from error
        return [
            StoredFile(info.path[len(base) :].lstrip("/"), info.size, info.mtime_ns or 0)
            for info in found
            if info.type == fs.FileType.File
        ]


def public(root: str) -> str:
    """A root without the key that a URI may hold, and without its query."""
    return re.sub(r"//[^/]*@", "//", root).partition("?")[0] if is_uri(root) else root


def pyarrow_fs() -> Any:
    """pyarrow.fs, which the package does without for all other data."""
    try:
        import pyarrow.fs
    except ImportError as error:
        raise ConfigError(
            "tables and object stores are read with pyarrow, which is missing: pip install 'sts-methods[arrow]'"
        ) from error
    return pyarrow.fs


# Clients do not survive a fork, so that the process is part of what is remembered.
@lru_cache(maxsize=16)
def _remote(process: int, root: str) -> tuple[Any, str]:
    system, base = pyarrow_fs().FileSystem.from_uri(root)
    return system, base


def _remote_file(process: int, root: str, name: str, *, fresh: bool = False) -> Any:
    return _opened(process, root, name) if not fresh else _opened.__wrapped__(process, root, name)


@lru_cache(maxsize=4096)  # opening asks for the size, which would double the requests
def _opened(process: int, root: str, name: str) -> Any:
    system, base = _remote(process, root)
    return system.open_input_file(f"{base}/{name}")


def of_split(
    files: Sequence[StoredFile], layout: Layout, split: Split, root: str, *, needed: bool = True
) -> list[StoredFile]:
    """The files whose paths name the split; those that name none are for training where nothing else is."""
    asked = layout.train if split == "train" else layout.test
    for name in (asked,) if asked else SPLIT_NAMES[split]:
        if found := [file for file in files if _names(name, file)]:
            return found
    unnamed = [f for f in files if not any(_names(name, f) for names in SPLIT_NAMES.values() for name in names)]
    if split == "train" and asked is None and unnamed:
        return unnamed
    if not needed:
        return []
    wanted = repr(asked) if asked else " or ".join(map(repr, SPLIT_NAMES[split]))
    raise ConfigError(
        f"the files of a split have its name in theirs or in their folder's, none of the {len(files)} in "
        f"{public(root)} names {wanted}: rename them, or set {split}_split"
    )


def _names(split: str, file: StoredFile) -> bool:
    """Whether a path has the name of the split between separators: train-00000-of-00002, val/data.tar, x_test.arrow."""
    return re.search(rf"(?:^|[-./_]){re.escape(split.lower())}(?=[-./]|_?\d)", file.name.lower()) is not None


def kept(layout: Layout, kind: str, *facts: object) -> Path:
    """The file of the cache that holds what was made of something with these facts."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(layout.cache).expanduser() if layout.cache else Path(base) / "sts-methods"
    return folder / kind / hashlib.sha256(repr(facts).encode()).hexdigest()[:32]
