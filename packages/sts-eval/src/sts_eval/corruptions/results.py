"""What a model scored on each corruption and severity, the numbers drawn from it, and the file that keeps it."""

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sts_core import ConfigError, Network, StateError
from sts_core.files import write_atomically
from sts_eval.corruptions.benchmark import ALEXNET_ERRORS, EXTRA_CORRUPTIONS, GROUPS, MAIN_CORRUPTIONS, SEVERITIES
from sts_eval.errors import DataError
from sts_eval.evaluations import Evaluation, Metric, register_evaluation

Outcomes = npt.NDArray[np.bool_]
Cell = tuple[str, int]
NUM_IMAGENET_CLASSES = 1000
NUM_MAIN_CELLS = len(MAIN_CORRUPTIONS) * len(SEVERITIES)
IMAGENET_C = register_evaluation(
    Evaluation(
        name="imagenet-c",
        title="ImageNet-C",
        column="ImageNet-C",
        metrics=(Metric("top1", "top-1"),),
        place=40,
        identity=("corruption", "severity", "protocol", "data", "source", "severities"),
        own_section=True,
    )
)


def _mean(values: list[float]) -> float:
    return float(np.mean(values))


@dataclass(frozen=True, kw_only=True)
class CorruptionResult:
    """Top-1 accuracy of one model, in percent, in each cell; a cell is a (corruption, severity)."""

    model: str
    """The name under which the model was evaluated."""
    accuracies: Mapping[Cell, float]
    """Percent correct in each cell, severities complete for each corruption."""
    num_images: int
    """Images per cell."""
    num_classes: int
    """Classes of the benchmark; 1000 makes it ImageNet-C, where the mCE is defined."""
    images: str
    """Digest of the images' names and labels; results with the same one can be paired image by image."""
    source: Mapping[str, Any] = field(default_factory=dict)
    """Where the corrupted images came from."""
    outcomes: Mapping[Cell, Outcomes] | None = field(default=None, repr=False, compare=False)
    """Whether each image was classified correctly; needed for intervals, kept outside the results file."""

    @property
    def corruptions(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(corruption for corruption, _ in self.accuracies))

    @property
    def severities(self) -> tuple[int, ...]:
        return tuple(sorted({severity for _, severity in self.accuracies}))

    @property
    def main(self) -> tuple[str, ...]:
        """Those of the 15 corruptions of the benchmark that were evaluated."""
        return tuple(name for name in MAIN_CORRUPTIONS if name in self.corruptions)

    @property
    def num_main_cells(self) -> int:
        """Cells behind the mean; 75 make it the paper's."""
        return len(self.main) * len(self.severities)

    @property
    def is_complete(self) -> bool:
        """Whether all 75 cells of the paper's mean are there."""
        return self.main == MAIN_CORRUPTIONS and self.severities == SEVERITIES

    @property
    def mean_accuracy(self) -> float:
        """The paper's metric: the mean over the 75 cells (or over those main cells that were evaluated).

        With extra corruptions only it is their mean, since there is nothing else to report.
        """
        return _mean([self.corruption_accuracy(name) for name in self.main or self.corruptions])

    @property
    def mean_corruption_error(self) -> float | None:
        """mCE = 100/15 · Σ_c (Σ_s E_cs / Σ_s E_cs^AlexNet), in percent; None unless all of ImageNet-C was evaluated.

        For other classes AlexNet's errors on ImageNet mean nothing.
        """
        if not self.is_complete or self.num_classes != NUM_IMAGENET_CLASSES:
            return None
        errors = {name: 100.0 - self.corruption_accuracy(name) for name in MAIN_CORRUPTIONS}
        return _mean([errors[name] / ALEXNET_ERRORS[name] for name in MAIN_CORRUPTIONS])

    def corruption_accuracy(self, corruption: str) -> float:
        """Mean over the severities of one corruption."""
        return _mean([self.accuracies[corruption, severity] for severity in self.severities])

    @property
    def severity_curve(self) -> dict[int, float]:
        """Mean over the main corruptions at each severity."""
        names = self.main or self.corruptions
        return {s: _mean([self.accuracies[name, s] for name in names]) for s in self.severities}

    @property
    def group_accuracies(self) -> dict[str, float]:
        """Mean of noise, blur, weather and digital, of those evaluated as a whole."""
        return {
            group: _mean([self.corruption_accuracy(name) for name in names])
            for group, names in GROUPS.items()
            if set(names) <= set(self.main)
        }

    @property
    def extra_accuracies(self) -> dict[str, float]:
        """The four extra corruptions, which are part of neither mean."""
        return {name: self.corruption_accuracy(name) for name in EXTRA_CORRUPTIONS if name in self.corruptions}

    @property
    def shown(self) -> tuple[str, int, dict[str, Any]]:
        """The images behind the numbers: names and labels, how many, and how they were made, wherever they lie."""
        return self.images, self.num_images, {name: value for name, value in self.source.items() if name != "root"}

    def to_json(self) -> dict[str, Any]:
        """Everything but the outcomes, as JSON values; `from_json` reads it back."""
        cells = {name: [self.accuracies[name, s] for s in self.severities] for name in self.corruptions}
        return {
            "model": self.model,
            "mean_accuracy": self.mean_accuracy,
            "num_main_cells": self.num_main_cells,
            "mce": self.mean_corruption_error,
            "severity_curve": {str(s): value for s, value in self.severity_curve.items()},
            "groups": self.group_accuracies,
            "extra": self.extra_accuracies,
            "severities": list(self.severities),
            "cells": cells,
            "num_images": self.num_images,
            "num_classes": self.num_classes,
            "images": self.images,
            "source": dict(self.source),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "CorruptionResult":
        """The result of `to_json`, or of a results entry, without outcomes."""
        accuracies = {
            (name, severity): float(accuracy)
            for name, row in value["cells"].items()
            for severity, accuracy in zip(value["severities"], row, strict=True)
        }
        return cls(
            model=value["model"],
            accuracies=accuracies,
            num_images=value["num_images"],
            num_classes=value["num_classes"],
            images=value["images"],
            source=value["source"],
        )

    def results_entry(self, *, network: Network, which: str = "last", outcomes: str | None = None) -> dict[str, Any]:
        """An entry of results.json; `outcomes` names the file of `save_outcomes`, relative to the run's folder."""
        head = {"evaluation": IMAGENET_C.name, "network": network, "metric": "top1", "value": self.mean_accuracy}
        return {**head, "which": which, "outcomes": outcomes, **self.to_json()}

    def save_outcomes(self, path: str | Path) -> Path:
        """Write the per-image outcomes, one bit each (75 cells of 50,000 images: 470 kB), to an .npz file."""
        if self.outcomes is None:
            raise ConfigError("outcomes can only be saved by the result of an evaluation, this one has none: evaluate")
        arrays = {f"{name}/{severity}": np.packbits(bits) for (name, severity), bits in self.outcomes.items()}
        head = json.dumps({"images": self.images, "num_images": self.num_images})
        content = io.BytesIO()
        np.savez(content, head=np.array(head), **arrays)  # type: ignore[arg-type]  # the stub types any keyword as bool
        write_atomically(path, content.getvalue())
        return Path(path)

    def with_outcomes(self, path: str | Path) -> "CorruptionResult":
        """This result with the outcomes read from a file of `save_outcomes`."""
        try:
            with np.load(io.BytesIO(Path(path).read_bytes()), allow_pickle=False) as stored:
                arrays = dict(stored)
            head = json.loads(str(arrays.pop("head")))
            packed = {
                (name, int(severity)): bits for key, bits in arrays.items() for name, severity in [key.split("/")]
            }
        except (OSError, EOFError, KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
            raise StateError(
                f"outcomes must be a file of save_outcomes, {path} is damaged ({error}): evaluate the run again"
            ) from error
        if head != {"images": self.images, "num_images": self.num_images}:
            raise DataError(f"outcomes must belong to the same images, {path} does not: evaluate the run again")
        if set(packed) != set(self.accuracies):
            raise DataError(f"outcomes must belong to the same cells, {path} does not: evaluate the run again")
        outcomes = {cell: np.unpackbits(bits, count=self.num_images).astype(bool) for cell, bits in packed.items()}
        return CorruptionResult(**(self.__dict__ | {"outcomes": outcomes}))
