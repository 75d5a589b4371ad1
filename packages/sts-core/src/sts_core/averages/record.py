"""What each teacher of a bank is worth, measured in one run and written to a file that `sts_eval` makes a page of."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sts_core.bank import TeacherBank
from sts_core.config import SmoothingConfig, spatial_ensemble, spatial_temporal_smoothing, temporal_moving_average
from sts_core.distributed import rank
from sts_core.errors import ConfigError, StateError
from sts_core.files import write_atomically

FORMAT = "sts-averages"
Measure = Callable[[nn.Module], Mapping[str, float]]
"""What a network is worth, by name: called with the student, which has a teacher's weights meanwhile.

In evaluation mode and without gradients; afterwards each of its modules is in the mode it was in.
"""


def averages_and_fragments(momentum: float = 0.999) -> dict[str, SmoothingConfig]:
    """Eight teachers for one run: three moving averages, and five that move in fragments.

    The averages are that of `momentum`, one ten times as short and one ten times as long. Each of the five follows the
    student as fast, in expectation, as the first does, which so is their control.
    """
    if not 0.9 <= momentum < 1.0:
        raise ConfigError(f"momentum must be in [0.9, 1), for an average ten times as short, got {momentum!r}")
    pull = 1.0 - momentum
    lengths = (round(1.0 - 10 * pull, 12), momentum, round(1.0 - pull / 10, 12))
    averages = {f"average {m:.6g}": temporal_moving_average(m) for m in lengths}
    both = 1.0 - math.sqrt(pull)  # p = m: half of the smoothing in time, half in space
    fragments = {f"SE {unit}": spatial_ensemble(momentum, granularity=unit) for unit in ("layer", "neuron")}
    fragments |= {
        f"STS {unit}": spatial_temporal_smoothing(both, both, granularity=unit)
        for unit in ("layer", "channel", "neuron")
    }
    return averages | fragments


class BankRecord:
    """Measures the student and every teacher of a bank, now and then, and keeps what was found in a file.

        bank = TeacherBank(student=model, configs=averages_and_fragments(0.999), seed=0)
        bank.attach(optimizer)
        record = BankRecord(bank, "averages.jsonl", lambda network: {"accuracy": evaluate(network)})
        for epoch in range(epochs):
            train(...)
            record.measure()

    Each time it adds a line for the student and for each teacher: the number of updates, the name (null for the
    student) and the values. A resumed training replaces the lines of the steps that it makes again. Of several
    processes all must call `measure`, and the first one writes.
    """

    def __init__(self, bank: TeacherBank, path: str | Path, measure: Measure) -> None:
        if bank.is_spread:
            raise ConfigError("a record measures all teachers on every rank, but this bank is spread: leave spread out")
        self.bank, self.path, self._measure = bank, Path(path), measure
        configs = {name: asdict(config) for name, config in bank.configs.items()}
        self._head = {"format": FORMAT, "version": 1, "seed": bank.seed, "configs": configs}
        self._lines = self._read() if self.path.exists() else []

    def _read(self) -> list[dict[str, Any]]:
        try:
            head, *lines = [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]
        except ValueError:
            raise StateError(f"{self.path} must be a record of a bank, but it is not: name another file") from None
        if head != self._head:
            raise StateError(
                f"{self.path} is the record of another bank, of other configs or another seed: name another file"
            )
        return lines

    def measure(self) -> None:
        """Measure all networks now."""
        step = self.bank.step
        with _evaluating(self.bank.student) as student:
            found = [self._line(step, None, self._measure(student))]
            for name in self.bank.configs:
                with self.bank.swapped(name):
                    found.append(self._line(step, name, self._measure(student)))
        self._lines = [line for line in self._lines if line["step"] < step] + found
        if rank() == 0:
            write_atomically(self.path, "".join(json.dumps(line) + "\n" for line in (self._head, *self._lines)))

    def _line(self, step: int, name: str | None, values: Mapping[str, float]) -> dict[str, Any]:
        numbers = {key: float(value) for key, value in values.items()}
        if not numbers:
            raise ConfigError("a measure must return at least one named number, got none")
        wrong = [key for key, value in numbers.items() if not math.isfinite(value)]
        kept = {key: value for key, value in numbers.items() if key not in wrong}  # JSON knows no NaN
        return {"step": step, "teacher": name, "values": kept}


@contextmanager
def _evaluating(network: nn.Module) -> Iterator[nn.Module]:
    modes = [(module, module.training) for module in network.modules()]
    try:
        with torch.no_grad():
            yield network.eval()
    finally:
        for module, training in modes:
            module.training = training
