"""Metrics on their way from the step to metrics.jsonl: averaged over steps and ranks, one JSON object a line."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sts_core.distributed import average_over_ranks_
from sts_core.files import write_atomically


class MetricWindow:
    """Means of 0-d tensors over the steps since the last `flush` and over all ranks; stays on the device until then."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._count = 0

    def add(self, metrics: Mapping[str, Tensor]) -> None:
        for name, value in metrics.items():
            value = value.detach().float()
            self._sums[name] = self._sums[name] + value if name in self._sums else value
        self._count += 1

    def flush(self) -> dict[str, float]:
        """The means, the same on every rank (a collective when there are several); the window starts anew."""
        names, count = sorted(self._sums), self._count
        if not names:
            return {}
        means = torch.stack([self._sums[name] for name in names]) / count
        average_over_ranks_([means])
        self._sums, self._count = {}, 0
        return dict(zip(names, means.tolist(), strict=True))


class MetricsLog:
    """metrics.jsonl: one JSON object a line, non-finite numbers as null.

    log = MetricsLog(folder / "metrics.jsonl")
    log.truncate(after_step=1200)      # on resume: what was logged after the checkpoint will be logged again
    log.append({"step": 1300, "loss": 0.5})
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def append(self, metrics: Mapping[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps({name: _jsonable(value) for name, value in metrics.items()}) + "\n")

    def read(self) -> list[dict[str, Any]]:
        """All lines; one that a kill cut short, or that is damaged in another way, is left out."""
        return [entry for entry in self._parsed() if isinstance(entry, dict)]

    def num_damaged(self) -> int:
        """How many lines `read` leaves out."""
        return sum(not isinstance(entry, dict) for entry in self._parsed())

    def _parsed(self) -> list[Any]:
        """What each line holds, None where that is no JSON."""
        lines = self.path.read_text(errors="replace").splitlines() if self.path.exists() else []
        return [_parse(line) for line in lines]

    def truncate(self, *, after_step: int) -> None:
        """Drop the entries of steps beyond `after_step`, atomically."""
        if not self.path.exists():
            return
        kept = [entry for entry in self.read() if entry.get("step", 0) <= after_step]
        write_atomically(self.path, "".join(json.dumps(entry) + "\n" for entry in kept))


def _parse(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _jsonable(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
