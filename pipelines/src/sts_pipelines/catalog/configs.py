"""What the names in the files beside this one stand for: the recipes of sts-methods with workers and evaluation.

The small ones, for digits and CIFAR-10 on a laptop, are recipes of our own.
"""

from dataclasses import replace
from typing import Any, Literal

import torch

from sts_eval import FeatureConfig, LinearProbeConfig, NeighboursConfig, byol_protocol, fast_protocol, moco_protocol
from sts_methods import (
    ByolConfig,
    DataConfig,
    FixMatchConfig,
    MoCoConfig,
    MoCoV3Config,
    OptimizerConfig,
    TrainingConfig,
    recipes,
)
from sts_methods.recipes import fixmatch_teacher, self_supervised_teacher
from sts_pipelines.config.cluster import ClusterConfig
from sts_pipelines.config.evaluation import EvaluationConfig
from sts_pipelines.config.pipeline import PipelineConfig

EIGHT_GPUS = ClusterConfig(num_workers=8, cpus_per_worker=8.0)  # paper: 8 RTX 2080
ONE_CPU = ClusterConfig(num_workers=1, use_gpu=False, cpus_per_worker=1.0)
ONE_GPU = ClusterConfig(num_workers=1, cpus_per_worker=8.0)
# The fastest for small runs on one machine: 2,274 images/s, where one Ray worker has 1,600 and two have 1,209 (BYOL on
# CIFAR-10, two cores), and the first step after 4 seconds instead of 27.
IN_PROCESS = ClusterConfig(num_workers=0, use_gpu=False)
# timm's smallest ResNet: 0.4 M weights in four stages. Its ImageNet stem makes minutes of hours on 32 pixels, and on
# digits leaves room to learn: with a CIFAR stem a linear probe of the untrained network is right for 93 % of them.
SMALL_BACKBONE = "test_resnet"

Dataset = Literal["digits", "cifar10"]


def two_workers() -> ClusterConfig:
    """Two workers on this machine's CPUs or, where it has GPUs, one on each of at most two."""
    gpus = min(torch.cuda.device_count(), 2)
    return ClusterConfig(num_workers=gpus or 2, use_gpu=gpus > 0, cpus_per_worker=1.0)


def byol_imagenet(
    name: str, *, epochs: int, m: float, p: float, variant: recipes.ByolVariant = "code"
) -> PipelineConfig:
    """BYOL with the probe that belongs to the variant: the STS repo's, or DeepMind's plain one with Nesterov."""
    training = recipes.byol_imagenet(variant, epochs=epochs, m=m, p=p)
    linear = byol_protocol()
    if variant == "deepmind":
        linear = byol_protocol(batch_norm=False, nesterov=True)  # DeepMind, configs/eval.py
    return PipelineConfig(name=name, training=training, cluster=EIGHT_GPUS, evaluation=_imagenet(linear))


def moco_imagenet(name: str, *, epochs: int, m: float, p: float) -> PipelineConfig:
    """MoCo v2 with its own probe."""
    training = recipes.moco_imagenet(epochs=epochs, m=m, p=p)
    return PipelineConfig(name=name, training=training, cluster=EIGHT_GPUS, evaluation=_imagenet(moco_protocol()))


def fixmatch_cifar(
    name: str, *, dataset: Literal["cifar10", "cifar100"], labels: int, m: float, p: float
) -> PipelineConfig:
    """FixMatch, whose own classifiers are measured."""
    return PipelineConfig(
        name=name,
        training=recipes.fixmatch_cifar(dataset, labels=labels, m=m, p=p),
        cluster=replace(EIGHT_GPUS, num_workers=4) if dataset == "cifar100" else ONE_GPU,
        evaluation=EvaluationConfig(after_training=("few-labels",)),
    )


def dino_imagenet(name: str, *, backbone: Literal["vit_small", "resnet50"]) -> PipelineConfig:
    """DINO with a plain linear probe; its own sees the class tokens of a transformer's last four blocks."""
    training = recipes.dino_imagenet(backbone)
    linear = byol_protocol(batch_norm=False)
    return PipelineConfig(name=name, training=training, cluster=EIGHT_GPUS, evaluation=_imagenet(linear))


def moco_v3_imagenet(name: str, *, backbone: Literal["resnet50", "vit_small"]) -> PipelineConfig:
    """MoCo v3 with its own probe: main_lincls.py, with --lr=3 for transformers, at 1024 images."""
    linear = LinearProbeConfig(
        learning_rates=(0.4 if backbone == "resnet50" else 12.0,),
        batch_size=1024,
        epochs=90,
        schedule="cosine",
        augment=True,
    )
    cluster = replace(EIGHT_GPUS, num_workers=16) if backbone == "resnet50" else EIGHT_GPUS
    training = recipes.moco_v3_imagenet(backbone)
    return PipelineConfig(name=name, training=training, cluster=cluster, evaluation=_imagenet(linear))


def mean_teacher_cifar(name: str) -> PipelineConfig:
    """Mean Teacher, whose own classifiers are measured."""
    evaluation = EvaluationConfig(after_training=("few-labels",))
    return PipelineConfig(name=name, training=recipes.mean_teacher_cifar(), cluster=ONE_GPU, evaluation=evaluation)


def byol_small(name: str, *, dataset: Dataset, m: float, p: float) -> PipelineConfig:
    """BYOL for a laptop.

    Chosen by a pilot on seed 0: on digits a high learning rate is where smoothing matters, at a lower one no smoothing
    does as well as any. Momenta are constant, since SE has none that could rise, and shorter than ImageNet's, since a
    teacher has to forget within a training of some hundred steps.
    """
    digits = dataset == "digits"
    training = TrainingConfig(
        method=ByolConfig(backbone=SMALL_BACKBONE, hidden_dim=256, projection_dim=64),
        smoothing=self_supervised_teacher(m, p),
        data=_small_data(dataset, "byol"),
        optimizer=OptimizerConfig(lr=1.2 if digits else 0.4, warmup_epochs=1.0),
        global_batch_size=64 if digits else 128,
        steps=_small_steps(dataset),
        **_SMALL,
    )
    return PipelineConfig(name=name, training=training, cluster=IN_PROCESS, evaluation=_small_evaluation())


def moco_small(name: str, *, dataset: Dataset, m: float, p: float) -> PipelineConfig:
    """MoCo for a laptop: a queue of eight batches, a teacher that remembers four times as long, two groups of norms."""
    batch = 64 if dataset == "digits" else 128
    training = TrainingConfig(
        method=MoCoConfig(backbone=SMALL_BACKBONE, dim=64, queue_size=8 * batch, bn_groups=2),
        smoothing=self_supervised_teacher(m, p),
        data=_small_data(dataset, "moco"),
        optimizer=OptimizerConfig(lr=0.12),
        global_batch_size=batch,
        steps=_small_steps(dataset),
        **_SMALL,
    )
    return PipelineConfig(name=name, training=training, cluster=IN_PROCESS, evaluation=_small_evaluation())


def moco_v3_small(name: str, *, dataset: Dataset, m: float, p: float) -> PipelineConfig:
    """MoCo v3 for a laptop: the networks, teachers and batches of the small BYOL."""
    base = byol_small(name, dataset=dataset, m=m, p=p)
    method = MoCoV3Config(backbone=SMALL_BACKBONE, hidden_dim=256, dim=64)
    return replace(base, training=replace(base.training, method=method))


FIXMATCH_OPTIMIZER = OptimizerConfig(
    lr=0.03,
    scale_lr=False,
    nesterov=True,
    weight_decay=5e-4,
    exclude_norm_and_bias=True,
    schedule="cosine_7_16",
)
"""That of the recipe for CIFAR-10."""


def fixmatch_small(name: str, *, dataset: Dataset, labels: int, m: float, p: float) -> PipelineConfig:
    """FixMatch for a laptop: batches of 16 labelled and 64 unlabelled images, and a lower bar for pseudo-labels."""
    training = TrainingConfig(
        method=FixMatchConfig(backbone=SMALL_BACKBONE, stem="imagenet", num_classes=10, threshold=0.9),
        smoothing=fixmatch_teacher(m, p),
        data=replace(_small_data(dataset, "fixmatch"), num_labels=labels, unlabelled_ratio=4),
        optimizer=FIXMATCH_OPTIMIZER,
        global_batch_size=16,
        steps=250 if dataset == "digits" else _small_steps(dataset),
        **_SMALL | {"keep_checkpoints": 20},  # google reports the median of the last 20
    )
    evaluation = EvaluationConfig(after_training=("few-labels",))
    return PipelineConfig(name=name, training=training, cluster=IN_PROCESS, evaluation=evaluation)


_SMALL: dict[str, Any] = {
    "log_every_steps": 5,
    "checkpoint_every_steps": 50,
    "verify_ranks_every_steps": 50,
    "keep_checkpoints": 3,
}


def _small_data(dataset: Dataset, views: Literal["byol", "moco", "fixmatch"]) -> DataConfig:
    return DataConfig(dataset=dataset, image_size=12 if dataset == "digits" else 32, views=views)


def _small_steps(dataset: Dataset) -> int:
    return 154 if dataset == "digits" else 1500


def _imagenet(linear: LinearProbeConfig) -> EvaluationConfig:
    return EvaluationConfig(linear=linear, features=FeatureConfig(num_workers=8, channels_last=True))


def _small_evaluation() -> EvaluationConfig:
    return EvaluationConfig(linear=fast_protocol(), knn=NeighboursConfig(ks=(20,), temperatures=(0.07,)))
