"""python -m tests.null_gpu.run_evaluations WORLD_SIZE BACKEND: the evaluations of sts_eval on a null GPU, in small.

Prints by evaluation what it asked of the GPU, or how it failed.
"""

import json
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import nn

from sts_core.distributed import world_size
from sts_eval import (
    CorruptionConfig,
    FeatureConfig,
    LinearProbeConfig,
    NeighboursConfig,
    byol_protocol,
    classification_accuracy,
    corruption_robustness,
    detection_transfer,
    extract_features,
    fast_protocol,
    linear_probe,
    moco_protocol,
    nearest_neighbours,
)
from sts_eval.detection.average_precision import Detections
from sts_eval.detection.backends.resnet import BottleneckResNet
from sts_eval.detection.synthetic import NARROW_SHAPE, narrow_config, write_synthetic_voc
from sts_methods import build_backbone, export, load_backbone, save_backbone
from tests.null_gpu.counters import answer, counted
from tests.null_gpu.ranks import rank_zero_of

DEVICE = "cuda:0"


class Noise(torch.utils.data.Dataset[Any]):
    """Random images of four classes."""

    def __init__(self, num: int = 96) -> None:
        self.images = torch.randn(num, 3, 32, 32, generator=torch.Generator().manual_seed(num))
        self.targets = torch.arange(num) % 4
        self.classes = ["a", "b", "c", "d"]

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.images[index], int(self.targets[index])


class NoiseCells:
    """A corruption benchmark of two cells."""

    num_classes, severities, corruptions, digest = 4, (1, 2), ("fog",), "noise"

    def cell(self, corruption: str, severity: int) -> "NoiseCells":
        return self

    def describe(self) -> dict[str, Any]:
        return {"source": "noise"}

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[np.ndarray[Any, Any], int]:
        return np.full((32, 32, 3), index, dtype=np.uint8), index % 4


def backbone() -> nn.Module:
    return build_backbone("test_resnet").to(DEVICE)


def features(precision: str = "float32") -> None:
    config = FeatureConfig(batch_size=32, precision=precision)  # type: ignore[arg-type]
    extract_features(backbone(), Noise(), config, device=DEVICE)


def probe(config: LinearProbeConfig) -> None:
    """The labels are added up over ranks on the device, where nothing adds: classes seem to be missing."""
    config, network = replace(config, allow_missing_classes=True), backbone()
    linear_probe(Noise(), Noise(40), config, backbone=network, features=FeatureConfig(batch_size=16), device=DEVICE)


def neighbours() -> None:
    train, test = (extract_features(backbone(), Noise(num), device=DEVICE) for num in (96, 40))
    nearest_neighbours(train, test, NeighboursConfig(ks=(5,), allow_missing_classes=True), device=DEVICE)


def corruptions() -> None:
    models = {"a": backbone_with_head(), "b": backbone_with_head()}
    corruption_robustness(models, NoiseCells(), CorruptionConfig(batch_size=8), device=DEVICE)  # type: ignore[arg-type]


def backbone_with_head() -> nn.Module:
    network = backbone()
    return nn.Sequential(network, nn.Linear(network.num_features, 4, device=DEVICE))  # type: ignore[arg-type]


def accuracy() -> None:
    classification_accuracy(backbone_with_head(), Noise(), FeatureConfig(batch_size=32), device=DEVICE)


def exported(folder: Path) -> None:
    """A backbone that was saved from the device, read back and exported."""
    network = build_backbone("resnet18").to(DEVICE)
    answer(None)
    path = folder / "teacher"
    save_backbone(
        path, network, backbone="resnet18", stem="imagenet", network="teacher", method="byol", step=1, smoothing={}
    )
    load_backbone(path)[0].to(DEVICE)
    export(path, folder / "exported.pth", to="torchvision")


def detection(folder: Path) -> None:
    """Training and scoring; that proposals are finite is a True that nobody computes.

    The other ranks hold what this one holds, but must not have seen the same images: each tells of its own.
    """
    answer(1)
    images = write_synthetic_voc(folder / "voc", splits={"trainval": 2 * world_size(), "test": world_size()})
    config = replace(narrow_config(images).scaled(2), batch_size=2 * world_size())

    def of_all_ranks(mine: list[Detections]) -> list[Detections]:
        return [replace(one, image_id=f"test_{rank:06d}") for rank in range(world_size()) for one in mine]

    with patch("sts_eval.detection.transfer.gather_lists", of_all_ranks):
        detection_transfer(BottleneckResNet(NARROW_SHAPE), config, folder=folder / "detection", device=DEVICE)


def cases(folder: Path) -> dict[str, Callable[[], None]]:
    return {
        "features": features,
        "features in bfloat16": lambda: features("bfloat16"),
        "features in float16": lambda: features("float16"),
        "k-NN": neighbours,
        "SGD on features": lambda: probe(moco_protocol(augment=False, epochs=2, batch_size=32)),
        "SGD on augmented images": lambda: probe(byol_protocol(epochs=1, batch_size=32)),
        "L-BFGS": lambda: probe(fast_protocol(regularisations=(1e-3,))),
        "ridge": lambda: probe(fast_protocol(solver="ridge", regularisations=(1e-3,))),
        "accuracy": accuracy,
        "corruptions": corruptions,
        "export": lambda: exported(folder),
        "detection": lambda: detection(folder),
    }


def main(num_ranks: int, backend: str) -> None:
    warnings.simplefilter("ignore")
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, case in cases(Path(folder)).items():
            with rank_zero_of(num_ranks, backend):
                answer(0, up_to_bytes=1 << 40)
                try:
                    with counted(found, name):
                        case()
                except Exception:
                    found[name] = {"error": traceback.format_exc()[-1500:]}
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
