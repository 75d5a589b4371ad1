"""Checkpoints that survive a kill at any moment, a torn file and a full disk.

A checkpoint is a folder with two files:

    state.pt        the nested state, written by torch.save and read with weights_only=True, which runs no code
    manifest.json   format, size and sha256 of every file, and the state's "meta" entry, readable without torch

It is written under a temporary name, synced and renamed, so a folder with the final name is whole or was damaged later,
which its checksums show.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from sts_core import CheckpointError

STATE_FILE = "state.pt"
MANIFEST_FILE = "manifest.json"
_NAME = re.compile(r"step-(\d{8,})")
_AHEAD = "ahead"  # marks a checkpoint that evaluations of the last few must not count: it goes with the next


def write_checkpoint(folder: str | Path, state: Mapping[str, Any]) -> None:
    """Write `state` to `folder` (replaced if it exists), or raise CheckpointError and leave what was there.

    `state` nests dicts, lists, tuples, tensors and plain values. Its entry "meta", if any, must be JSON: it is also put
    into the manifest, so that tools can tell what a checkpoint is without loading it.
    """
    folder = Path(folder)
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        _discard(partial)
        partial.mkdir(parents=True)
        files = {STATE_FILE: _write_state(partial / STATE_FILE, state)}
        manifest = {"format": "sts-checkpoint", "version": 1, "files": files, "meta": state.get("meta", {})}
        _write_synced(partial / MANIFEST_FILE, json.dumps(manifest, indent=1).encode())
        _replace(partial, folder)
    except OSError as error:
        _discard(partial)
        reason = error.strerror or error
        raise CheckpointError(
            f"cannot write checkpoint {folder} ({reason}): the earlier ones are untouched; {_remedy(error)}"
        ) from error


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """The manifest of a checkpoint, without its tensors and without checking them."""
    path = Path(folder) / MANIFEST_FILE
    try:
        manifest = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} must be a readable manifest, got {error}: use an earlier checkpoint") from error
    if not isinstance(manifest, dict) or manifest.get("format") != "sts-checkpoint":
        raise CheckpointError(f"{path} must be an sts-checkpoint manifest, got something else: check the folder")
    return manifest


def verify_checkpoint(folder: str | Path) -> dict[str, Any]:
    """The manifest, after comparing size and sha256 of every file with it."""
    manifest = read_manifest(folder)
    for name, expected in manifest["files"].items():
        path = Path(folder) / name
        try:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise CheckpointError(f"{path} must be readable, got {error}: use an earlier checkpoint") from error
        if found != expected["sha256"]:
            raise CheckpointError(
                f"{path} must have sha256 {expected['sha256'][:12]} as its manifest says, got {found[:12]} "
                f"({path.stat().st_size} of {expected['bytes']} bytes): it is damaged, use an earlier checkpoint"
            )
    return manifest


def read_checkpoint(folder: str | Path) -> dict[str, Any]:
    """The state that `write_checkpoint` wrote, on the CPU, after its checksums were compared."""
    verify_checkpoint(folder)
    state: dict[str, Any] = torch.load(Path(folder) / STATE_FILE, map_location="cpu", weights_only=True)
    return state


def snapshot(state: Any) -> Any:
    """A copy of a nested state on the CPU that later training steps cannot change."""
    if isinstance(state, Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, Mapping):
        return {key: snapshot(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(snapshot(value) for value in state)
    return state


class CheckpointStore:
    """The last `keep` checkpoints of a run, written by a thread so that a step waits for a copy in memory only.

    While one is being written, the newest further one waits its turn and replaces any older one that does (`skipped`
    counts those): training never waits for the disk. A failed write is a warning at the next `save`, since disks are
    emptied, and an error at `close`, since a run whose last state is lost is not done.
    """

    def __init__(self, folder: str | Path, *, keep: int = 3) -> None:
        self.folder = Path(folder)
        self.keep = keep
        self.skipped = 0
        self._lock = threading.Lock()
        self._writer: threading.Thread | None = None
        self._waiting: tuple[int, dict[str, Any], bool] | None = None
        self._failure: Exception | None = None

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    def steps(self) -> list[int]:
        """Steps of the checkpoints present, oldest first, intact or not."""
        if not self.folder.is_dir():
            return []
        found = (_NAME.fullmatch(entry.name) for entry in self.folder.iterdir())
        return sorted(int(match.group(1)) for match in found if match)

    def save(self, step: int, state: Mapping[str, Any], *, ahead: bool = False) -> None:
        """Copy `state` now and write it in the background; one `ahead` of its time stays until the next."""
        copied = snapshot(state)
        with self._lock:
            failure, self._failure = self._failure, None
            self.skipped += self._waiting is not None
            self._waiting = (step, copied, ahead)
            if self._writer is None:
                # Not a daemon: an interpreter that ends in good order finishes the write first.
                self._writer = threading.Thread(target=self._write_waiting, name="checkpoint writer")
                self._writer.start()
        if failure is not None:
            warnings.warn(str(failure), UserWarning, stacklevel=2)

    def wait(self) -> None:
        """Return when everything handed to `save` is on the disk (or has failed)."""
        writer = self._writer
        if writer is not None:
            writer.join()

    def close(self) -> None:
        """Wait, and raise if the last write failed."""
        self.wait()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def latest(self) -> dict[str, Any] | None:
        """The newest intact checkpoint, or None."""
        step = self.newest_intact()
        return None if step is None else read_checkpoint(self.path(step))

    def newest_intact(self) -> int | None:
        """The step of the newest intact checkpoint; a warning names each damaged one that was passed over."""
        self.wait()
        for step in reversed(self.steps()):
            try:
                verify_checkpoint(self.path(step))
            except CheckpointError as error:
                warnings.warn(f"skipped a damaged checkpoint: {error}", UserWarning, stacklevel=2)
            else:
                return step
        return None

    def _write_waiting(self) -> None:
        while True:
            with self._lock:
                waiting, self._waiting = self._waiting, None
                if waiting is None:
                    self._writer = None
                    return
            try:
                step, state, ahead = waiting
                write_checkpoint(self.path(step), state)
                if ahead:
                    (self.path(step) / _AHEAD).touch()
                self._prune(step)
                self._failure = None
            except Exception as error:  # whatever it is: training hears of it, and the next one is tried
                self._failure = error

    def _prune(self, newest: int) -> None:
        """Keep the last `keep` up to `newest`, which is in place; what killed writers left goes, too.

        So do steps beyond it: the run would not have come here from an earlier one had they been intact.
        """
        due = [step for step in self.steps() if step <= newest and not (self.path(step) / _AHEAD).exists()]
        kept = [*due[-self.keep :], newest]
        gone = [self.path(step) for step in self.steps() if step not in kept]
        for folder in (*gone, *self.folder.glob(".step-*")):
            _discard(folder)


class _HashedFile:
    """A file that torch.save writes to front to back, hashed on the way."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.sha256 = hashlib.sha256()
        self.num_bytes = 0
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            written = self.file.write(data)
        except OSError as error:
            self.error = error  # torch.save turns it into a RuntimeError that names neither disk nor cause
            raise
        self.sha256.update(data)
        self.num_bytes += written
        return written

    def flush(self) -> None:
        self.file.flush()


def _write_state(path: Path, state: Mapping[str, Any]) -> dict[str, Any]:
    with path.open("wb") as raw:
        file = _HashedFile(raw)
        try:
            torch.save(dict(state), file)  # type: ignore[arg-type]
        except RuntimeError as error:
            raise file.error or OSError(errno.EIO, str(error)) from error
        raw.flush()
        os.fsync(raw.fileno())
    return {"sha256": file.sha256.hexdigest(), "bytes": file.num_bytes}


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _replace(partial: Path, folder: Path) -> None:
    """Rename `partial` to `folder`; a folder of that name steps aside first, since rename needs an empty target."""
    replaced = folder.with_name(f".{folder.name}.replaced")
    _discard(replaced)
    if folder.exists():
        folder.rename(replaced)
    partial.rename(folder)
    _sync_folder(folder.parent)
    _discard(replaced)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where the file system lets folders be synced."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def _discard(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _remedy(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "free some space, or keep fewer checkpoints"
    return "check that the folder is writable"
