"""Checkpoints of detection training: one file per checkpoint, complete or absent, the newest readable one counts."""

import io
import pickle
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sts_core import StateError
from sts_core.files import write_atomically

_NAME = re.compile(r"iteration-(\d{8})\.pt")


@dataclass(frozen=True)
class DetectionCheckpoint:
    """All that training needs to resume; everything else is a function of the iteration."""

    iteration: int
    """Optimizer steps done."""
    fingerprint: str
    """Of the settings and the backbone that the run began with."""
    model: dict[str, torch.Tensor]
    optimizer: dict[str, Any]


class CheckpointFolder:
    """The checkpoints of one run in `folder`, of which the newest `keep` stay."""

    def __init__(self, folder: Path, *, keep: int) -> None:
        self.folder = folder
        self.keep = keep

    def save(self, checkpoint: DetectionCheckpoint) -> None:
        """Write under a temporary name, rename, then delete what is too old."""
        buffer = io.BytesIO()
        torch.save(vars(checkpoint), buffer)
        write_atomically(self.folder / f"iteration-{checkpoint.iteration:08d}.pt", buffer.getvalue())
        for path in self._paths()[self.keep :]:
            path.unlink()

    def newest(self, fingerprint: str) -> DetectionCheckpoint | None:
        """The newest readable checkpoint, or None; one of another run is an error, since training would mix the two."""
        for path in self._paths():
            try:
                content = torch.load(path, map_location="cpu", weights_only=True)
            except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
                warnings.warn(f"{path} cannot be read ({error}): the checkpoint before it is used", stacklevel=2)
                continue
            checkpoint = DetectionCheckpoint(**content)
            if checkpoint.fingerprint != fingerprint:
                raise StateError(
                    f"a folder holds one run, got {self.folder} with checkpoints of other settings, other images or "
                    "another backbone: use another folder, or delete them to start anew"
                )
            return checkpoint
        return None

    def _paths(self) -> list[Path]:
        """All checkpoints, newest first."""
        if not self.folder.is_dir():
            return []
        return sorted((path for path in self.folder.iterdir() if _NAME.fullmatch(path.name)), reverse=True)
