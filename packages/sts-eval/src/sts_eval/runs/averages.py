"""The record that sts_core's `BankRecord` keeps of many teachers of one run."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sts_core import ConfigError, SmoothingConfig, StateError

FORMAT = "sts-averages"


@dataclass(frozen=True)
class Average:
    """One network of the run: the student, or a teacher with how it followed."""

    name: str
    config: SmoothingConfig | None
    """None for the student."""
    values: dict[str, tuple[tuple[int, float], ...]]
    """(number of updates, value) by metric."""

    def last(self, metric: str) -> float | None:
        """The value after the last measurement."""
        points = self.values.get(metric, ())
        return points[-1][1] if points else None


@dataclass(frozen=True)
class Averages:
    """All networks of one run, the student first."""

    networks: tuple[Average, ...]
    metrics: tuple[str, ...]
    steps: tuple[int, ...]
    """Numbers of updates after which it was measured."""

    def control(self, network: Average) -> Average | None:
        """The moving average among them that follows the student as fast as a teacher that moves in fragments."""
        if network.config is None or network.config.preserve_probability == 0:
            return None
        pull = 1 - network.config.effective_momentum
        averages = [n for n in self.networks if n.config is not None and n.config.preserve_probability == 0]
        return next((n for n in averages if n.config and abs(1 - n.config.momentum - pull) <= 1e-6 * pull), None)


def read_averages(path: str | Path) -> Averages:
    """Read a bank's record."""
    file = Path(path)
    try:
        head, *lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        if head["format"] != FORMAT:
            raise KeyError(FORMAT)
        configs = {name: SmoothingConfig(**config) for name, config in head["configs"].items()}
        networks = [_network(name, configs.get(name or ""), lines) for name in (None, *configs)]
    except OSError as error:
        raise StateError(f"a bank's record cannot be read from {file}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, ConfigError):
        raise StateError(f"{file} must be the record of a bank, as BankRecord writes it, but it is not") from None
    metrics = tuple(dict.fromkeys(metric for network in networks for metric in network.values))
    if not metrics:
        raise StateError(f"{file} is the record of a bank in which nothing was measured yet")
    return Averages(tuple(networks), metrics, tuple(sorted({line["step"] for line in lines})))


def _network(name: str | None, config: SmoothingConfig | None, lines: Iterable[dict[str, Any]]) -> Average:
    values: dict[str, list[tuple[int, float]]] = {}
    for line in lines:
        if line["teacher"] == name:
            for metric, value in line["values"].items():
                values.setdefault(metric, []).append((int(line["step"]), float(value)))
    return Average(name or "student", config, {metric: tuple(sorted(points)) for metric, points in values.items()})
