"""Where runs are kept: a folder on this machine, or a URI with a folder to work in."""

import hashlib
import os
import stat
import tempfile
from pathlib import Path

from sts_core.files import is_uri
from sts_pipelines.errors import UsageError


def local_folder(storage_path: str, name: str) -> Path:
    """The folder in which a run works: in the storage if that is a path, else a place of its own for each URI."""
    if not is_uri(storage_path):
        return Path(storage_path).expanduser().absolute() / name
    runs = private_folder(Path(tempfile.gettempdir()) / f"sts-runs-{os.getuid()}")
    return runs / place_of(storage_path) / name


def place_of(uri: str) -> str:
    return hashlib.sha256(uri.encode()).hexdigest()[:12]


def private_folder(folder: Path) -> Path:
    """`folder`, made if need be, for this user and nobody else: whoever owned it could put anything in our way."""
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode):
        raise UsageError(f"{folder} must be a folder of your own, but is not: have it removed")
    folder.chmod(0o700)
    return folder
