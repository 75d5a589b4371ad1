"""ImageNet-C: accuracy of several models on every corruption and severity, each image read once for all of them.

`corruption_robustness` runs all cells in this process. To spread them, call `evaluate_cell` anywhere, for each of
`cells_of(source)`, and put the pieces together with `merge_cells`: the cells are independent and the merge does not
depend on their order.
"""

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from sts_core import ConfigError
from sts_eval.corruptions.benchmark import ALL_CORRUPTIONS
from sts_eval.corruptions.folders import CellImages, CorruptionSource
from sts_eval.corruptions.results import Cell, CorruptionResult, Outcomes
from sts_eval.errors import DataError
from sts_eval.features.extraction import FeatureConfig
from sts_eval.features.images import IMAGENET_MEAN, IMAGENET_STD
from sts_eval.features.unchanged import unchanged
from sts_eval.probes.accuracy import ranks_of_labels


@dataclass(frozen=True, kw_only=True)
class CorruptionConfig(FeatureConfig):
    """How corrupted images are fed to the models."""

    channels_last: bool = True
    """Memory format of the images, which are stored that way: nothing is transposed."""
    mean: tuple[float, float, float] = IMAGENET_MEAN
    """Mean of the channels, in [0, 1], with which the models were trained."""
    std: tuple[float, float, float] = IMAGENET_STD
    """Deviation of the channels, likewise."""


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """Which images of one cell each model classified correctly."""

    corruption: str
    severity: int
    outcomes: Mapping[str, Outcomes]
    """Per model one truth value per image."""
    images: str
    """Digest of the images' names and labels."""
    num_classes: int
    source: Mapping[str, Any]
    seconds_loading: float = 0.0
    """Time spent waiting for images."""
    seconds_forward: float = 0.0
    """Time spent in the models."""


class _Batches(Dataset[Any]):
    """Whole batches of a cell, as uint8 [B, H, W, 3]; a failure is a value, since loader processes wrap exceptions."""

    def __init__(self, cell: CellImages, batch_size: int) -> None:
        self.cell, self.batch_size = cell, batch_size

    def __len__(self) -> int:
        return -(-len(self.cell) // self.batch_size)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor] | DataError:
        start = index * self.batch_size
        stop = min(start + self.batch_size, len(self.cell))
        try:
            samples = [self.cell[i] for i in range(start, stop)]
        except DataError as error:
            return DataError(*error.args)
        images = torch.from_numpy(np.stack([image for image, _ in samples]))
        return images, torch.tensor([label for _, label in samples])


def _load(cell: CellImages, config: CorruptionConfig, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    batches = _Batches(cell, config.batch_size)
    loader: DataLoader[Any] = DataLoader(
        batches,
        batch_size=None,
        num_workers=config.num_workers,
        worker_init_fn=_without_opencv_threads,
        pin_memory=device.type == "cuda",
    )
    for loaded in loader:
        if isinstance(loaded, DataError):
            raise loaded
        yield loaded


def _without_opencv_threads(worker: int) -> None:
    """A forked process has OpenCV's pool without its threads, and would wait for them for ever (0 is safe, 1 waits)."""
    if "cv2" in sys.modules:
        sys.modules["cv2"].setNumThreads(0)


def _normalised(images: Tensor, config: CorruptionConfig, device: torch.device) -> Tensor:
    """uint8 [B, H, W, 3] -> float [B, 3, H, W] on the device; the bytes travel, not the floats."""
    pixels = images.to(device, non_blocking=True).permute(0, 3, 1, 2).float()
    mean, std = (torch.tensor(v, device=device).view(3, 1, 1) for v in (config.mean, config.std))
    pixels = pixels.div_(255.0).sub_(mean).div_(std)
    return pixels if config.channels_last else pixels.contiguous()


def _correct(logits: Any, labels: Tensor, num_classes: int, name: str) -> Tensor:
    if not isinstance(logits, Tensor) or logits.ndim != 2 or logits.shape[1] != num_classes:
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ConfigError(
            f"a model must give one score per class, [N, {num_classes}] here, {name} gave {got}: "
            "put a classifier for these classes on the backbone"
        )
    return ranks_of_labels(logits.float(), labels.to(logits.device)) == 0


def _device_of(models: Mapping[str, nn.Module], device: torch.device | str | None) -> torch.device:
    if not models:
        raise ConfigError("corruption robustness needs at least one model, got none: pass {name: model}")
    first = next((p for model in models.values() for p in model.parameters()), torch.empty(0))
    return first.device if device is None else torch.device(device)


@contextmanager
def _in_eval_mode(models: Iterable[nn.Module]) -> Iterator[None]:
    modes = [(module, module.training) for model in models for module in model.modules()]
    for module, _ in modes:
        module.training = False
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def evaluate_cell(
    models: Mapping[str, nn.Module],
    source: CorruptionSource,
    corruption: str,
    severity: int,
    config: CorruptionConfig | None = None,
    *,
    device: torch.device | str | None = None,
) -> CellResult:
    """Outcomes of all `models` (name -> classifier) on one cell: one pass over its images. A pure function."""
    device = _device_of(models, device)
    cell = source.cell(corruption, severity)
    for model in models.values():
        model.to(device)
    with _in_eval_mode(models.values()):
        outcomes, loading, forward = _outcomes(models, cell, source.num_classes, config or CorruptionConfig(), device)
    return CellResult(
        corruption=corruption,
        severity=severity,
        outcomes=outcomes,
        images=cell.digest,
        num_classes=source.num_classes,
        source=source.describe(),
        seconds_loading=loading,
        seconds_forward=forward,
    )


@torch.inference_mode()
def _outcomes(
    models: Mapping[str, nn.Module], cell: CellImages, num_classes: int, config: CorruptionConfig, device: torch.device
) -> tuple[dict[str, Outcomes], float, float]:
    """Per model which images are correct, and the seconds spent waiting for images and in the models."""
    found: dict[str, list[Tensor]] = {name: [] for name in models}
    loading = forward = 0.0
    dtype, autocast = getattr(torch, config.precision), config.precision != "float32"
    clock = time.perf_counter()
    for images, labels in _load(cell, config, device):
        arrived = time.perf_counter()
        pixels = _normalised(images, config, device)
        for name, model in models.items():
            with torch.autocast(device.type, dtype=dtype, enabled=autocast):
                logits = model(pixels)
            found[name].append(_correct(logits, labels, num_classes, name).cpu())
        left = time.perf_counter()
        loading, forward, clock = loading + arrived - clock, forward + left - arrived, left
    return {name: torch.cat(parts).numpy() for name, parts in found.items()}, loading, forward


def cells_of(source: CorruptionSource) -> list[Cell]:
    """All (corruption, severity) of a source, in the benchmark's order."""
    return [(corruption, severity) for corruption in source.corruptions for severity in source.severities]


def merge_cells(cells: Iterable[CellResult]) -> dict[str, CorruptionResult]:
    """Results per model from the results of single cells, in any order; each corruption must be complete."""
    by_cell = _check_cells(list(cells))
    first = next(iter(by_cell.values()))
    results = {}
    for name in first.outcomes:
        outcomes = {cell: result.outcomes[name] for cell, result in by_cell.items()}
        results[name] = CorruptionResult(
            model=name,
            accuracies={cell: 100.0 * float(bits.mean()) for cell, bits in outcomes.items()},
            num_images=len(outcomes[first.corruption, first.severity]),
            num_classes=first.num_classes,
            images=first.images,
            source=first.source,
            outcomes=outcomes,
        )
    return results


def _check_cells(cells: Sequence[CellResult]) -> dict[Cell, CellResult]:
    if not cells:
        raise DataError("a merge needs at least one cell, got none: evaluate some first")
    order = sorted(cells, key=lambda cell: (ALL_CORRUPTIONS.index(cell.corruption), cell.severity))
    by_cell = {(cell.corruption, cell.severity): cell for cell in order}
    if len(by_cell) != len(order):
        raise DataError(
            f"each cell must be evaluated once, got {len(order)} of {len(by_cell)} cells: drop repeated ones"
        )
    severities = sorted({cell.severity for cell in order})
    for corruption in dict.fromkeys(cell.corruption for cell in order):
        if missing := [severity for severity in severities if (corruption, severity) not in by_cell]:
            raise DataError(f"every corruption needs the same severities, {corruption} lacks {missing[0]}: evaluate it")
    for cell in order:
        if cell.images != order[0].images or set(cell.outcomes) != set(order[0].outcomes):
            which = f"{cell.corruption} at severity {cell.severity}"
            raise DataError(
                f"all cells must hold the same images and models, {which} differs from {order[0].corruption} at "
                f"severity {order[0].severity}: unpack or generate that folder again"
            )
    return by_cell


def corruption_robustness(
    models: Mapping[str, nn.Module],
    source: CorruptionSource,
    config: CorruptionConfig | None = None,
    *,
    device: torch.device | str | None = None,
) -> dict[str, CorruptionResult]:
    """Evaluate all `models` (name -> classifier that returns logits) on all cells of `source`, in this process.

    `source` is a FolderCorruptions (ImageNet-C), ArrayCorruptions (CIFAR-10-C) or GeneratedCorruptions; `config` says
    how its images are fed, and `device` where the models compute, which is where they are if it is None.

    >>> pixels = np.zeros((8, 32, 32, 3), dtype=np.uint8)
    >>> source = GeneratedCorruptions(CleanArrays(pixels, np.arange(8) % 2), corruptions=["contrast"])
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 2))
    >>> corruption_robustness({"mine": model}, source)["mine"].mean_accuracy
    50.0
    """
    _device_of(models, device)
    with ExitStack() as stack:
        for model in models.values():
            stack.enter_context(unchanged(model))
        return merge_cells(evaluate_cell(models, source, *cell, config, device=device) for cell in cells_of(source))
