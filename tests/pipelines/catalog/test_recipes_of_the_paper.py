"""The numbers of the paper's recipes, stated once more: nobody changes one in passing.

MoCo v2 is facebookresearch/moco, BYOL the paper's released code or deepmind-research/byol, FixMatch google-research's.
"""

from typing import Any

import pytest

from sts_core.fields import flattened
from sts_methods import CropView, StrongView, WeakView
from sts_pipelines.catalog import CATALOG
from sts_pipelines.config.kinds import base_of
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.config.plain import to_dict

Values = dict[str, Any]

MOCO_PROBE: Values = {
    "evaluation.after_training": ["linear", "knn"],
    "evaluation.networks": ["teacher", "student"],
    "evaluation.linear.solver": "sgd",
    "evaluation.linear.learning_rates": [30.0],
    "evaluation.linear.batch_size": 256,
    "evaluation.linear.epochs": 100,
    "evaluation.linear.momentum": 0.9,
    "evaluation.linear.nesterov": False,
    "evaluation.linear.weight_decay": 0.0,
    "evaluation.linear.schedule": "step",
    "evaluation.linear.milestones": [60, 80],
    "evaluation.linear.gamma": 0.1,
    "evaluation.linear.batch_norm": False,
    "evaluation.linear.augment": True,
    "evaluation.linear.evaluate_every_epochs": 1,
    "evaluation.linear.held_out_fraction": 0.0,
}
BYOL_PROBE = MOCO_PROBE | {
    "evaluation.linear.learning_rates": [0.2],
    "evaluation.linear.epochs": 80,
    "evaluation.linear.schedule": "cosine",
    "evaluation.linear.batch_norm": True,
    "evaluation.linear.evaluate_every_epochs": 10,
}
MOCO = MOCO_PROBE | {
    "method.kind": "moco",
    "method.backbone": "resnet50",
    "method.stem": "imagenet",
    "method.dim": 128,
    "method.queue_size": 65_536,
    "method.temperature": 0.2,
    "method.bn_groups": 8,
    "method.shuffle": True,
    "smoothing.granularity": "layer",
    "smoothing.buffers": "keep",
    "momentum_schedule": "constant",
    "data.dataset": "imagefolder",
    "data.image_size": 224,
    "data.views": "moco",
    "data.crop_scale_min": None,
    "data.interpolation": None,
    "optimizer.name": "sgd",
    "optimizer.lr": 0.03,
    "optimizer.scale_lr": False,
    "optimizer.momentum": 0.9,
    "optimizer.nesterov": False,
    "optimizer.weight_decay": 1e-4,
    "optimizer.exclude_norm_and_bias": False,
    "optimizer.schedule": "cosine",
    "optimizer.by_epoch": True,
    "optimizer.warmup_epochs": 0.0,
    "optimizer.clip_gradient_norm": None,
    "global_batch_size": 256,
    "accumulation": 1,
    "epochs": 200,
    "steps": None,
    "precision": "float32",
    "cluster.num_workers": 8,
}
BYOL = BYOL_PROBE | {
    "method.kind": "byol",
    "method.backbone": "resnet50",
    "method.stem": "imagenet",
    "method.hidden_dim": 4096,
    "method.projection_dim": 256,
    "method.output_bias": True,
    "method.concatenate_views": False,
    "smoothing.granularity": "layer",
    "smoothing.buffers": "keep",
    "momentum_schedule": "cosine",
    "data.dataset": "imagefolder",
    "data.image_size": 224,
    "data.views": "byol",
    "data.crop_scale_min": None,
    "data.interpolation": None,
    "optimizer.name": "sgd",
    "optimizer.lr": 0.05,
    "optimizer.scale_lr": True,
    "optimizer.momentum": 0.9,
    "optimizer.nesterov": False,
    "optimizer.weight_decay": 1e-4,
    "optimizer.exclude_norm_and_bias": False,
    "optimizer.schedule": "cosine",
    "optimizer.by_epoch": False,
    "optimizer.warmup_epochs": 10,
    "optimizer.warmup_start": 2e-5,
    "optimizer.clip_gradient_norm": None,
    "global_batch_size": 256,
    "accumulation": 1,
    "epochs": 200,
    "steps": None,
    "precision": "float32",
    "cluster.num_workers": 8,
}
DEEPMIND = BYOL | {
    "method.output_bias": False,
    "method.zero_init_last": True,
    "data.views": "byol_deepmind",
    "data.interpolation": "bicubic",
    "optimizer.name": "lars",
    "optimizer.lr": 0.3,
    "optimizer.weight_decay": 1e-6,
    "optimizer.exclude_norm_and_bias": True,
    "optimizer.trust_coefficient": 1e-3,
    "optimizer.warmup_start": 0.0,
    "global_batch_size": 4096,
    "accumulation": 16,
    "epochs": 300,
    "evaluation.linear.nesterov": True,
    "evaluation.linear.batch_norm": False,
}
CIFAR10: Values = {
    "method.kind": "fixmatch",
    "method.backbone": "wrn_28_2",
    "method.stem": "cifar",
    "method.num_classes": 10,
    "method.threshold": 0.95,
    "method.unlabelled_weight": 1.0,
    "method.pseudo_labels": "student",
    "smoothing.granularity": "layer",
    "smoothing.buffers": "copy",
    "momentum_schedule": "constant",
    "data.dataset": "cifar10",
    "data.image_size": 32,
    "data.views": "fixmatch",
    "data.unlabelled_ratio": 7,
    "optimizer.name": "sgd",
    "optimizer.lr": 0.03,
    "optimizer.scale_lr": False,
    "optimizer.momentum": 0.9,
    "optimizer.nesterov": True,
    "optimizer.weight_decay": 5e-4,
    "optimizer.exclude_norm_and_bias": True,
    "optimizer.schedule": "cosine_7_16",
    "optimizer.by_epoch": False,
    "optimizer.warmup_epochs": 0.0,
    "optimizer.clip_gradient_norm": None,
    "global_batch_size": 64,
    "accumulation": 1,
    "epochs": None,
    "steps": 1_048_576,
    "precision": "float32",
    "checkpoint_every_steps": 1024,
    "keep_checkpoints": 20,
    "evaluation.after_training": ["few-labels"],
    "evaluation.networks": ["teacher", "student"],
    "cluster.num_workers": 1,
}
CIFAR100 = CIFAR10 | {
    "method.backbone": "wrn_28_8",
    "method.num_classes": 100,
    "data.dataset": "cifar100",
    "optimizer.weight_decay": 1e-3,
    "cluster.num_workers": 4,
}


def teacher(m: float, p: float) -> Values:
    return {"smoothing.momentum": m, "smoothing.preserve_probability": p}


def fixmatch(values: Values, *counts: int) -> dict[str, Values]:
    return {
        f"fixmatch-{values['data.dataset']}-{labels}-{kind}": values | teacher(0.999, p) | {"data.num_labels": labels}
        for labels in counts
        for kind, p in (("tma", 0.0), ("sts", 0.5))
    }


LR = {"optimizer.lr": 0.1, "optimizer.warmup_start": 1e-5}
TABLE: dict[str, Values] = {
    "moco-imagenet-200ep-none": MOCO | teacher(0.0, 0.0),
    "moco-imagenet-200ep-se": MOCO | teacher(0.0, 0.999),
    "moco-imagenet-200ep-tma": MOCO | teacher(0.999, 0.0),
    "moco-imagenet-200ep-sts": MOCO | teacher(0.999, 0.5),
    "byol-imagenet-200ep-none": BYOL | teacher(0.0, 0.0),
    "byol-imagenet-200ep-se": BYOL | teacher(0.0, 0.999),
    "byol-imagenet-200ep-tma": BYOL | teacher(0.99, 0.0),
    "byol-imagenet-200ep-sts": BYOL | teacher(0.99, 0.7),
    "byol-imagenet-200ep-sts-lr0.1": BYOL | teacher(0.99, 0.7) | LR,
    "byol-imagenet-300ep-sts": BYOL | teacher(0.99, 0.7) | {"epochs": 300},
    "byol-imagenet-1000ep-sts": BYOL | teacher(0.99, 0.7) | {"epochs": 1000},
    "byol-imagenet-300ep-deepmind": DEEPMIND | teacher(0.99, 0.0),
    **fixmatch(CIFAR10, 20, 40, 250, 4000),
    **fixmatch(CIFAR100, 200, 400, 2500, 10000),
}


@pytest.mark.parametrize("name", TABLE)
def test_a_recipe_has_the_numbers_of_its_source(name: str) -> None:
    found = flattened(to_dict(CATALOG[name].build()))
    assert {key: found.get(key, "missing") for key in TABLE[name]} == TABLE[name]


def views_of(name: str) -> tuple[CropView | WeakView | StrongView, ...]:
    return base_of(CATALOG[name].build()).training.data.make_views()


MOCO_VIEW = CropView(
    size=224, crop_scale=(0.2, 1.0), crop_ratio=(3 / 4, 4 / 3), interpolation="bilinear", flip=0.5, jitter=0.8,
    brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, grayscale=0.2, blur=0.5, blur_sigma=(0.1, 2.0), solarise=0.0,
    rotation=0.0, erase=0.0,
)  # fmt: skip


def test_moco_sees_its_own_views() -> None:
    assert views_of("moco-imagenet-200ep-sts") == (MOCO_VIEW, MOCO_VIEW)


@pytest.mark.parametrize(
    ("name", "interpolation", "colours"),
    [
        ("byol-imagenet-200ep-sts", "bilinear", "pillow"),
        ("byol-imagenet-200ep-sts-lr0.1", "bilinear", "pillow"),
        ("byol-imagenet-300ep-deepmind", "bicubic", "tensorflow"),
    ],
)
def test_byol_solarises_its_second_view_and_deepmind_has_its_own_crops_and_colours(
    name: str, interpolation: str, colours: str
) -> None:
    for view, blur, solarise in zip(views_of(name), (1.0, 0.1), (0.0, 0.2), strict=True):
        assert view == CropView(
            size=224, crop_scale=(0.08, 1.0), crop_ratio=(3 / 4, 4 / 3), interpolation=interpolation, flip=0.5,  # type: ignore[arg-type]
            jitter=0.8, colours=colours, brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1, grayscale=0.2,  # type: ignore[arg-type]
            blur=blur, blur_sigma=(0.1, 2.0), solarise=solarise, rotation=0.0, erase=0.0,
        )  # fmt: skip


@pytest.mark.parametrize("name", ["fixmatch-cifar10-40-sts", "fixmatch-cifar100-400-sts"])
def test_fixmatch_shifts_by_four_pixels_and_cuts_out_sixteen(name: str) -> None:
    weak = WeakView(size=32, flip=0.5, padding=4 / 32)
    strong = StrongView(size=32, flip=0.5, padding=4 / 32, num_ops=2, op_probability=0.5, cutout=16 / 32)
    assert views_of(name) == (weak, strong)


def test_byols_warm_up_begins_at_one_millionth_whatever_the_learning_rate() -> None:
    for name in ("byol-imagenet-200ep-sts", "byol-imagenet-200ep-sts-lr0.1"):
        optimizer = base_of(CATALOG[name].build()).training.optimizer
        assert optimizer.lr * optimizer.warmup_start == pytest.approx(1e-6)


@pytest.mark.parametrize("name", [name for name in TABLE if "imagenet" in name])
def test_a_worker_of_imagenet_sees_32_images_at_a_time_which_11_gb_hold(name: str) -> None:
    recipe = CATALOG[name].build()
    assert isinstance(recipe, PipelineConfig)
    training = recipe.training
    assert training.global_batch_size // training.accumulation // recipe.cluster.num_workers == 32
