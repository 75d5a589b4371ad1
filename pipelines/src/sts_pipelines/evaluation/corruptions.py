"""Where corrupted images come from for a dataset, and one pass over them shared out among the ranks."""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from sts_core import ConfigError
from sts_core.distributed import gather_lists, rank, world_size
from sts_core.files import write_atomically
from sts_eval import (
    ArrayCorruptions,
    CellResult,
    CleanArrays,
    CleanFolder,
    CorruptionConfig,
    CorruptionResult,
    FolderCorruptions,
    GeneratedCorruptions,
    cells_of,
    evaluate_cell,
    merge_cells,
)
from sts_methods import DataConfig, ImageArrays, ImageFiles, dataset_record
from sts_pipelines.config.evaluation import EvaluationConfig


def corruption_source(data: DataConfig, config: EvaluationConfig, classes: Sequence[str]) -> Any:
    """The released images where a folder of them is named, else corrupted test images."""
    if config.imagenet_c_root is not None:
        root = Path(config.imagenet_c_root).expanduser()
        if (root / "labels.npy").is_file():
            return ArrayCorruptions(root)
        return FolderCorruptions(root, image_size=data.image_size, classes=classes)
    test = replace(data, image_size=max(data.image_size, 32)).open("test")
    clean: CleanFolder | CleanArrays
    if isinstance(test, ImageArrays):
        assert test.labels is not None
        clean = CleanArrays(test.images.permute(0, 2, 3, 1).contiguous().numpy(), test.labels)
    else:
        if not (dataset_record(data.dataset).class_folders and isinstance(test, ImageFiles)):
            raise ConfigError(
                f"imagenet-c corrupts images in memory or in a folder per class, dataset {data.dataset!r} has neither: "
                f"name released images in evaluation.imagenet_c_root"
            )
        root = Path(str(data.root)).expanduser()
        split = Path(test.paths[0]).relative_to(root).parts[0]  # val or test; images may lie deep in a class's folder
        clean = CleanFolder(
            root / split,
            image_size=max(data.image_size, 32),
            classes=classes,
            skip_unreadable=data.on_error == "skip",
        )
    cache = None if config.corruption_cache is None else Path(config.corruption_cache).expanduser()
    return GeneratedCorruptions(clean, severities=config.severities, cache=cache)


def corruption_results(
    models: Mapping[str, nn.Module],
    data: DataConfig,
    config: EvaluationConfig,
    *,
    classes: Sequence[str],
    keep: Path,
    device: torch.device,
) -> dict[str, CorruptionResult]:
    """Accuracy of all models on every cell; all ranks get the whole result.

    The folder `keep` holds the cells that are done: a killed evaluation resumes with the next.
    """
    cells = measure_cells({keep: models}, data, config, classes=classes, device=device)
    return merge_cells(gather_lists([_read_cell(_file_of(keep, cell)) for cell in cells]))


def measure_cells(
    groups: Mapping[Path, Mapping[str, nn.Module]],
    data: DataConfig,
    config: EvaluationConfig,
    *,
    classes: Sequence[str],
    device: torch.device,
) -> list[tuple[str, int]]:
    """Show each corrupted image, read or made once, to the models of all groups; their outcomes go to their folders.

    Each rank takes every n-th cell; returns those of this rank.
    """
    source = corruption_source(data, config, classes)
    mean, std = data.statistics
    settings = CorruptionConfig(
        batch_size=config.features.batch_size,
        num_workers=config.features.num_workers,
        precision=config.features.precision,
        mean=(mean[0], mean[1], mean[2]),
        std=(std[0], std[1], std[2]),
    )
    mine = cells_of(source)[rank() :: world_size()]
    for cell in mine:
        missing = [folder for folder in groups if not _file_of(folder, cell).is_file()]
        names = {f"{k}/{name}": (folder, name) for k, folder in enumerate(missing) for name in groups[folder]}
        if not names:
            continue
        shown = {key: Resized(groups[folder][name], data.image_size) for key, (folder, name) in names.items()}
        measured = evaluate_cell(shown, source, *cell, settings, device=device)
        for k, folder in enumerate(missing):
            outcomes = {name: measured.outcomes[f"{k}/{name}"] for name in groups[folder]}
            _write_cell(_file_of(folder, cell), replace(measured, outcomes=outcomes))
    return mine


def _file_of(folder: Path, cell: tuple[str, int]) -> Path:
    return folder / f"{cell[0]}-{cell[1]}.npz"


def _write_cell(file: Path, cell: CellResult) -> None:
    facts = {field.name: getattr(cell, field.name) for field in fields(cell) if field.name != "outcomes"}
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {f"of_{name}": value for name, value in cell.outcomes.items()}
    np.savez(buffer, facts=json.dumps(facts), **arrays)
    write_atomically(file, buffer.getvalue())


def _read_cell(file: Path) -> CellResult:
    with np.load(file, allow_pickle=False) as content:
        outcomes = {name.removeprefix("of_"): content[name] for name in content.files if name != "facts"}
        return CellResult(**json.loads(str(content["facts"])), outcomes=outcomes)


class Resized(nn.Module):
    """A classifier that is shown images at the size it was trained with: corruptions need at least 32 pixels."""

    def __init__(self, model: nn.Module, image_size: int) -> None:
        super().__init__()
        self.model, self.image_size = model, image_size

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if images.shape[-1] != self.image_size:
            images = nn.functional.interpolate(images, (self.image_size,) * 2, mode="bilinear", antialias=True)
        logits: torch.Tensor = self.model(images)
        return logits
