"""Runs in object storage: a local run folder whose files are copied to and from a URI (s3://, gs://, file://).

A run always works in a local folder, where checkpoints can be renamed into place. If the storage is a URI, rank 0
copies what changed after every checkpoint, tensors before the manifest that vouches for them, and fetches it all before
a resume. What looks at many runs, as a sweep does, leaves the tensors where they are.
"""

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from sts_core.files import is_uri
from sts_pipelines.config.storage_path import local_folder, place_of
from sts_pipelines.errors import RunError, UsageError


class Mirror:
    """A local folder and its copy at `uri`; only one process pushes. A `light` one passes over tensors."""

    def __init__(self, uri: str, folder: Path, *, light: bool = False) -> None:
        from pyarrow import fs

        try:
            self.files, self.root = fs.FileSystem.from_uri(uri)
        except Exception as error:  # pyarrow raises several kinds for a URI that it cannot use
            raise UsageError(
                f"cluster.storage-path must be a path or a URI that pyarrow opens, got {uri}: {error}"
            ) from error
        self.folder, self.light = folder, light
        self._known: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()

    def pull(self) -> None:
        """Copy what is at the URI into the local folder, but for files that were changed here since."""
        from pyarrow import fs

        selector = fs.FileSelector(self.root, recursive=True, allow_not_found=True)
        with self._one_line_errors("from"):
            for info in self.files.get_file_info(selector):
                place = self.folder / Path(info.path).relative_to(self.root)
                if info.type == fs.FileType.File and self._takes(place) and not _is_newer(place, info.mtime_ns):
                    place.parent.mkdir(parents=True, exist_ok=True)
                    self._copy(self.files, info.path, fs.LocalFileSystem(), str(place))
                    if info.mtime_ns is not None:
                        os.utime(place, ns=(info.mtime_ns, info.mtime_ns))
                    self._known[self._name(place)] = self._stamp(place)

    def push(self) -> None:
        """Copy what changed since the last push, and remove what is gone; partial files and locks stay here."""
        with self._lock, self._one_line_errors("to"):
            paths = [path for path in self.folder.rglob("*") if path.is_file() and self._takes(path)]
            present = {self._name(path): path for path in paths}
            for name in sorted(present, key=lambda name: name.endswith("manifest.json")):
                if not any(part.startswith(".") for part in Path(name).parts):
                    with contextlib.suppress(FileNotFoundError):  # an old checkpoint that was removed just now
                        self._push_file(name, present[name])
            for name in [name for name in self._known if name not in present]:
                self._remove(name)

    def _push_file(self, name: str, path: Path) -> None:
        from pyarrow import fs

        stamp = self._stamp(path)
        if self._known.get(name) != stamp:
            self.files.create_dir(f"{self.root}/{Path(name).parent}", recursive=True)
            self._copy(fs.LocalFileSystem(), str(path), self.files, f"{self.root}/{name}")
            self._known[name] = stamp

    def _takes(self, path: Path) -> bool:
        return not self.light or (path.suffix != ".safetensors" and "checkpoints" not in path.parts)

    @contextlib.contextmanager
    def _one_line_errors(self, direction: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = " ".join(str(error).split())
            raise RunError(
                f"cannot copy the run {direction} {self.root} ({reason}): rerun the same command to resume"
            ) from error

    def _remove(self, name: str) -> None:
        del self._known[name]
        try:
            self.files.delete_file(f"{self.root}/{name}")
        except OSError:  # it never was there
            return

    def _copy(self, source: Any, old: str, target: Any, new: str) -> None:
        from pyarrow import fs

        fs.copy_files(old, new, source_filesystem=source, destination_filesystem=target)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()

    @staticmethod
    def _stamp(path: Path) -> tuple[int, int]:
        status = path.stat()
        return status.st_size, status.st_mtime_ns


def _is_newer(path: Path, mtime_ns: int | None) -> bool:
    return mtime_ns is not None and path.is_file() and path.stat().st_mtime_ns > mtime_ns


def uri_of(storage_path: str, folder: Path) -> str | None:
    """Where the storage has a run folder, or one inside it; None for a path, or if the folder was moved elsewhere."""
    _, place, name = folder.as_posix().partition(f"/{place_of(storage_path)}/")
    if not is_uri(storage_path) or not place:
        return None
    uri, *options = storage_path.split("?", 1)  # s3://bucket/runs?endpoint_override=...
    return "?".join([f"{uri.rstrip('/')}/{name}", *options])


def mirror_of(storage_path: str, folder: Path, *, light: bool = False) -> Mirror | None:
    """The copy of a run folder, if its storage is a URI."""
    uri = uri_of(storage_path, folder)
    return None if uri is None else Mirror(uri, folder, light=light)


@contextlib.contextmanager
def up_to_date(storage_path: str, folders: Iterable[Path]) -> Iterator[None]:
    """What is light of some folders is that of the storage in the body, and what the body writes is copied there."""
    mirrors = [mirror for folder in folders if (mirror := mirror_of(storage_path, folder, light=True)) is not None]
    for mirror in mirrors:
        mirror.pull()
    yield
    for mirror in mirrors:
        mirror.push()


@contextlib.contextmanager
def brought_here(paths: Iterable[str], *, light: bool = False) -> Iterator[list[str]]:
    """Paths as they are, and for each URI a folder of this machine with what is there; what is added goes back."""
    mirrors = {path: _fetched(path, light=light) for path in paths if is_uri(path)}
    yield [str(mirrors[path].folder) if path in mirrors else path for path in paths]
    for mirror in mirrors.values():
        mirror.push()


def _fetched(uri: str, *, light: bool) -> Mirror:
    """The folder of a run, or of several, as its URI has it."""
    path, *options = uri.split("?", 1)
    storage, _, name = path.rstrip("/").rpartition("/")
    mirror = Mirror(uri, local_folder("?".join([storage, *options]), name), light=light)
    mirror.pull()
    if not mirror.folder.is_dir():
        raise UsageError(f"{uri} must hold a run, but nothing is there: check the address")
    return mirror
