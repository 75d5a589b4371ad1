"""python -m tests.null_gpu.run_budget METHOD ...: a step of each full-size recipe as rank 0 of 8.

Prints by precision and method the counts by phase of a step that neither logs nor saves, the lines where another one
waited for the device, and the step's peak memory beside the estimate of `sts check`.
"""

import contextlib
import gc
import json
import sys
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from sts_core import Precision, spatial_temporal_smoothing
from sts_methods import DataConfig, DinoConfig, OptimizerConfig, TrainingConfig, build_method, fit, recipes
from sts_pipelines.config.cluster import ClusterConfig
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.diagnostics.fake_step import fake_step
from tests.null_gpu.ranks import rank_zero_of
from tests.null_gpu.training import counted_steps, runtime, training_config

WORLD_SIZE = 8
PRECISIONS: tuple[Precision, ...] = ("float32", "float16")  # in bfloat16 a null GPU has no convolutions of cuDNN
COUNTED, WATCHED = 12, 13
"""In its first ten steps DDP times itself, for which it waits for the device."""


def dino() -> TrainingConfig:
    """ViT-S/16 with two crops of 224 px and eight of 96."""
    return TrainingConfig(
        method=DinoConfig(backbone="vit_small_patch16_224", num_prototypes=65_536),
        smoothing=spatial_temporal_smoothing(0.996, 0.0, buffers="keep"),
        data=DataConfig(dataset="images", image_size=224, views="dino", num_local_crops=8),
        optimizer=OptimizerConfig(name="adamw"),
        global_batch_size=256,
        steps=1000,
    )


def moco_v3() -> TrainingConfig:
    """ResNet-50, 32 images on each GPU, in float32 as the others."""
    return replace(recipes.moco_v3_imagenet(), global_batch_size=256, precision="float32")


def recipe(method: str, photos: Path) -> TrainingConfig:
    """The recipe as its authors train it, on images that are here; 32 on each GPU where they come from files."""
    if method in ("fixmatch", "mean_teacher"):  # CIFAR's network and batch: 8 labelled and 56 unlabelled images
        config = training_config(method, world_size=WORLD_SIZE)
        return replace(config, data=replace(config.data, unlabelled_ratio=7))
    makers = {"byol": recipes.byol_imagenet, "moco": recipes.moco_imagenet, "moco_v3": moco_v3, "dino": dino}
    config = makers[method]()
    return replace(config, data=replace(config.data, dataset="images", root=str(photos), num_workers=0))


def write_photos(folder: Path, num: int = 256) -> Path:
    """Small photographs of noise: few bytes to decode, since nobody looks."""
    folder.mkdir()
    drawn = np.random.default_rng(0)
    for number in range(num):
        Image.fromarray(drawn.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(folder / f"{number:03d}.png")
    return folder


class _EnoughError(Exception):
    """All that is wanted has been counted; a run to its end would save and check hundreds of megabytes."""


def measure(method: str, folder: Path, precision: Precision) -> dict[str, Any]:
    gc.collect()  # what the method before held
    config = replace(recipe(method, folder / "photos"), precision=precision)
    with rank_zero_of(WORLD_SIZE), counted_steps(watched=WATCHED, stop=(WATCHED + 1, _EnoughError)) as steps:
        quiet = {"log_every_steps": 1000, "checkpoint_every_steps": None, "checkpoint_every_minutes": None}
        rest = {"epochs": None, "steps": 1000, "verify_ranks_every_steps": None}
        with contextlib.suppress(_EnoughError):
            fit(replace(config, **quiet, **rest), runtime(folder / precision / method))
    peak = max(phase["peak_bytes"] for phase in steps[COUNTED].values())
    return {"phases": steps[COUNTED], "waits": steps[WATCHED]["waits"], "peak": peak, "estimate": estimate(config)}


def estimate(config: TrainingConfig) -> int:
    """The bytes that `sts check` names."""
    pipeline = PipelineConfig(name="budget", training=config, cluster=ClusterConfig(num_workers=WORLD_SIZE))
    cost = fake_step(pipeline, build_method(config.method, seed=0))
    return cost.fixed_bytes + cost.passing_bytes


def main() -> None:
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as name:
        write_photos(Path(name) / "photos")
        found = {
            precision: {method: measure(method, Path(name), precision) for method in sys.argv[1:]}
            for precision in PRECISIONS
        }
        print(json.dumps(found))


if __name__ == "__main__":
    main()
