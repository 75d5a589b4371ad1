"""Where corrupted images come from for a dataset, and one pass over them shared out among the ranks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from sts_eval import (
    ArrayCorruptions,
    CleanArrays,
    CorruptionConfig,
    CorruptionResult,
    FolderCorruptions,
    GeneratedCorruptions,
    cells_of,
    evaluate_cell,
    merge_cells,
)
from sts_methods.data import DataConfig
from sts_methods.datasets import IMAGENET_STATISTICS, STATISTICS, ImageArrays, open_source
from sts_pipelines.errors import UsageError
from sts_pipelines.pipeline import EvaluationConfig


def corruption_source(data: DataConfig, config: EvaluationConfig) -> Any:
    """The released images where a folder of them is named, else corrupted test images, where these are small."""
    if config.imagenet_c_root is not None:
        root = Path(config.imagenet_c_root)
        if (root / "labels.npy").is_file():
            return ArrayCorruptions(root)
        return FolderCorruptions(root, image_size=data.image_size)
    test = open_source(data.dataset, data.root, "test", image_size=max(data.image_size, 32))
    if not isinstance(test, ImageArrays):
        raise UsageError("imagenet-c needs the released images: set evaluation.imagenet-c-root to their folder")
    assert test.labels is not None
    images = test.images.permute(0, 2, 3, 1).contiguous().numpy()
    return GeneratedCorruptions(CleanArrays(images, test.labels), severities=config.severities)


def corruption_results(
    models: Mapping[str, nn.Module], data: DataConfig, config: EvaluationConfig, *, device: torch.device
) -> dict[str, CorruptionResult]:
    """Accuracy of all models on every cell, each image read or made once for all of them.

    Each rank takes every n-th cell, and all ranks get the whole result.
    """
    source = corruption_source(data, config)
    mean, std = STATISTICS.get(data.dataset, IMAGENET_STATISTICS)
    settings = CorruptionConfig(
        batch_size=config.features.batch_size,
        num_workers=config.features.num_workers,
        mean=(mean[0], mean[1], mean[2]),
        std=(std[0], std[1], std[2]),
    )
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    shown = {name: Resized(model, data.image_size) for name, model in models.items()}
    mine = [evaluate_cell(shown, source, *cell, settings, device=device) for cell in cells_of(source)[rank::world_size]]
    parts = [mine]
    if world_size > 1:
        parts = [[] for _ in range(world_size)]
        dist.all_gather_object(parts, mine)
    return merge_cells([cell for part in parts for cell in part])


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
