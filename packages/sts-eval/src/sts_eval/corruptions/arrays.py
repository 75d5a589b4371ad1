"""Reader of CIFAR-10-C and CIFAR-100-C as released: one array file per corruption, the five severities in a row."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sts_eval.corruptions.benchmark import ALL_CORRUPTIONS, SEVERITIES, check_corruptions, check_severities
from sts_eval.corruptions.folders import ArrayCell, count_classes
from sts_eval.errors import DataError


def _open_array(path: Path) -> npt.NDArray[Any]:
    try:
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = type(error).__name__
        raise DataError(f"every array must be readable, {path} is not ({reason}): unpack CIFAR-10-C again") from error
    return array


class ArrayCorruptions:
    """CIFAR-10-C: root/corruption.npy of uint8 [5N, 32, 32, 3], rows (s-1)N to sN are severity s, and root/labels.npy.

    `labels.npy` repeats the N labels five times; a file with N labels is read as well.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        corruptions: Sequence[str] | None = None,
        severities: Sequence[int] = SEVERITIES,
        num_classes: int | None = None,
    ) -> None:
        self.root = Path(root)
        self.severities = check_severities(severities)
        self.corruptions = self._find(corruptions)
        self.labels = self._read_labels()
        self.num_classes = count_classes(self.labels, num_classes, where=str(self.root))

    def _find(self, wanted: Sequence[str] | None) -> tuple[str, ...]:
        names = ALL_CORRUPTIONS if wanted is None else check_corruptions(wanted)
        found = tuple(name for name in names if (self.root / f"{name}.npy").is_file())
        if wanted is not None and (missing := [name for name in names if name not in found]):
            raise DataError(f"{self.root} must hold {missing[0]}.npy, it does not: unpack CIFAR-10-C there")
        if not found:
            raise DataError(
                f"{self.root} must hold files such as gaussian_noise.npy, it has none: "
                "point to the folder into which CIFAR-10-C was unpacked"
            )
        return found

    def _read_labels(self) -> npt.NDArray[np.int64]:
        lengths = {name: self._check_images(name) for name in self.corruptions}
        length, name = lengths[self.corruptions[0]], self.corruptions[0]
        for other, value in lengths.items():
            if value != length:
                raise DataError(
                    f"all corruptions must have as many images, {name}.npy has {length} and {other}.npy {value} "
                    f"in {self.root}: unpack CIFAR-10-C again"
                )
        labels = np.asarray(_open_array(self.root / "labels.npy"), dtype=np.int64)
        num_images = length // len(SEVERITIES)
        if labels.shape not in ((num_images,), (length,)):
            raise DataError(
                f"labels.npy must have {length} or {num_images} labels, {self.root} has shape {labels.shape}: "
                "unpack CIFAR-10-C again"
            )
        return labels[:num_images]

    def _check_images(self, name: str) -> int:
        array = _open_array(self.root / f"{name}.npy")
        if array.dtype != np.uint8 or array.ndim != 4 or array.shape[3] != 3 or len(array) % len(SEVERITIES):
            raise DataError(
                f"a corruption must be a uint8 array of shape [5N, height, width, 3] with the severities in a row, "
                f"{self.root / name}.npy is {array.dtype} {array.shape}: unpack CIFAR-10-C again"
            )
        return len(array)

    def cell(self, corruption: str, severity: int) -> ArrayCell:
        start = (severity - 1) * len(self.labels)
        return ArrayCell(self.root / f"{corruption}.npy", self.labels, start)

    def describe(self) -> dict[str, Any]:
        return {"source": "released arrays", "root": str(self.root)}
