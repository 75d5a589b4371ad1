"""Every method learns on handwritten digits: a linear probe of its teacher beats that of the untrained network."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sklearn.linear_model import RidgeClassifier
from torch import Tensor, nn

from sts_core import SmoothingConfig, spatial_temporal_smoothing
from sts_methods import (
    ByolConfig,
    DataConfig,
    DinoConfig,
    FixMatchConfig,
    LocalRuntime,
    MeanTeacherConfig,
    MethodConfig,
    MoCoConfig,
    MoCoV3Config,
    OptimizerConfig,
    TrainingConfig,
    build_method,
    evaluation_data,
    fit,
)

BACKBONE = "test_resnet"  # timm's smallest ResNet
SIZE = 12
LABELS_PER_CLASS = 10  # with all labels a linear probe of random features is right for 92 % of the digits
KEEP = spatial_temporal_smoothing(0.9, 0.5, buffers="keep")
SLOWER = spatial_temporal_smoothing(0.95, 0.5, buffers="keep")  # the keys in MoCo's queue must age slowly
COPY = spatial_temporal_smoothing(0.9, 0.5, buffers="copy")
ADAM = OptimizerConfig(name="adamw", lr=4e-3, scale_lr=False, warmup_epochs=1.0)  # gets far in a hundred steps
SEMI_SUPERVISED = OptimizerConfig(lr=0.03, scale_lr=False, nesterov=True, exclude_norm_and_bias=True)


def training(
    method: MethodConfig,
    data: DataConfig,
    optimizer: OptimizerConfig,
    smoothing: SmoothingConfig,
    batch: int,
    steps: int,
) -> TrainingConfig:
    return TrainingConfig(
        method=method,
        data=data,
        optimizer=optimizer,
        smoothing=smoothing,
        global_batch_size=batch,
        steps=steps,
        checkpoint_every_steps=None,
        log_every_steps=20,
    )


RUNS = {
    "byol": training(
        ByolConfig(backbone=BACKBONE, stem="cifar", hidden_dim=256, projection_dim=64),
        DataConfig(image_size=SIZE, views="byol"),
        ADAM,
        KEEP,
        batch=128,
        steps=120,
    ),
    "moco": training(
        MoCoConfig(backbone=BACKBONE, stem="cifar", dim=64, queue_size=1024, bn_groups=2),
        DataConfig(image_size=SIZE, views="moco"),
        OptimizerConfig(name="adamw", lr=2e-3, scale_lr=False),
        SLOWER,
        batch=128,
        steps=100,
    ),
    "moco_v3": training(
        MoCoV3Config(backbone=BACKBONE, stem="cifar", hidden_dim=256, dim=64),
        DataConfig(image_size=SIZE, views="byol"),
        ADAM,
        KEEP,
        batch=128,
        steps=80,
    ),
    "dino": training(
        DinoConfig(
            backbone=BACKBONE,
            stem="cifar",
            hidden_dim=256,
            head_batch_norm=True,
            bottleneck_dim=64,
            num_prototypes=256,
        ),
        DataConfig(image_size=SIZE, views="dino", num_local_crops=2),
        replace(ADAM, warmup_epochs=0.5),
        KEEP,
        batch=64,
        steps=60,
    ),
    "fixmatch": training(
        FixMatchConfig(backbone=BACKBONE, stem="cifar", num_classes=10, threshold=0.9),
        DataConfig(image_size=SIZE, views="fixmatch", num_labels=40, unlabelled_ratio=4),
        SEMI_SUPERVISED,
        COPY,
        batch=16,
        steps=120,
    ),
    "mean_teacher": training(
        MeanTeacherConfig(backbone=BACKBONE, stem="cifar", num_classes=10, consistency_weight=20.0, ramp_up_steps=60),
        DataConfig(image_size=SIZE, views="mean_teacher", num_labels=40, unlabelled_ratio=4),
        SEMI_SUPERVISED,
        KEEP,
        batch=16,
        steps=120,
    ),
}


@torch.no_grad()
def features(backbone: nn.Module, images: Tensor) -> Tensor:
    return torch.cat([backbone.eval()(part) for part in torch.split(images, 256)])


def probe_error(backbone: nn.Module, data: DataConfig) -> float:
    """Share of test images that a linear classifier, trained on frozen features of a few images, gets wrong."""
    parts = []
    for dataset in evaluation_data(data):
        images, labels = zip(*(dataset[i] for i in range(len(dataset))), strict=True)
        parts.append((features(backbone, torch.stack(images)), torch.tensor(labels)))
    (train, train_labels), (test, test_labels) = parts
    mean, std = train.mean(dim=0), train.std(dim=0) + 1e-6
    few = torch.cat([(train_labels == c).nonzero()[:LABELS_PER_CLASS, 0] for c in range(10)])
    classifier = RidgeClassifier(alpha=30.0).fit(((train - mean) / std)[few].numpy(), train_labels[few].numpy())
    return 1.0 - float(classifier.score(((test - mean) / std).numpy(), test_labels.numpy()))


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_the_teacher_learns_features_of_digits(name: str, tmp_path: Path) -> None:
    config = RUNS[name]
    untrained = probe_error(build_method(config.method, seed=config.seed).backbone("teacher"), config.data)
    result = fit(config, LocalRuntime(tmp_path))
    trained = probe_error(result.backbone("teacher"), config.data)
    assert trained < 0.75 * untrained, f"{name}: error {trained:.3f} after training, {untrained:.3f} before"
