"""What is measured after training."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sts_core import Network
from sts_eval import (
    DetectionConfig,
    Evaluation,
    FeatureConfig,
    LinearProbeConfig,
    NeighboursConfig,
    registered_evaluations,
)
from sts_pipelines.errors import require

EvaluatedNetwork = Literal[Network, "untrained"]


def measurable() -> dict[str, Evaluation]:
    """The evaluations that can follow a training, by name."""
    return {one.name: one for one in registered_evaluations() if not one.logged}


def own_sections() -> dict[str, type]:
    """The dataclass of settings that each further evaluation brings, by the name of its section."""
    return {name.replace("-", "_"): one.config for name, one in measurable().items() if one.config is not None}


@dataclass(frozen=True, kw_only=True)
class DuringTrainingConfig:
    """What is measured while a network trains, for the curve: on a part of the images, by the first k and temperature
    of k-NN and a ridge regression in place of the linear classifier. No bit of the training depends on it."""

    every_epochs: int | None = None
    """Epochs between measurements; None measures nothing."""
    evaluations: tuple[str, ...] = ("knn", "linear")
    """Which, of both networks or those in `networks`."""
    num_train: int = 10_000
    """Training images, as many of each class as can be."""
    num_test: int = 2_000
    """Test images, likewise."""

    def __post_init__(self) -> None:
        for name in ("every_epochs", "num_train", "num_test"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"{name} must be at least 1, got {value}", name)
        quick = [one.name for one in measurable().values() if one.in_training]
        for name in self.evaluations:
            require(name in quick, f"evaluations must hold some of {', '.join(quick)}, got {name!r}", "evaluations")


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """What is measured after training; both networks are, and each number says which one it belongs to."""

    after_training: tuple[str, ...] = ("linear", "knn")
    """Evaluations that follow the training at once; `sts evaluate --only` runs any of them later."""
    during_training: DuringTrainingConfig = field(default_factory=DuringTrainingConfig)
    """What is measured after some of the epochs."""
    networks: tuple[EvaluatedNetwork, ...] = ("teacher", "student")
    """Which networks are evaluated; the paper's rows are the teacher's, and untrained is both before the first step."""
    linear: LinearProbeConfig = field(default_factory=LinearProbeConfig)
    """The linear classifier on frozen features."""
    knn: NeighboursConfig = field(default_factory=NeighboursConfig)
    """The nearest-neighbour classifier; the first k and temperature are the ones that rank trials."""
    features: FeatureConfig = field(default_factory=FeatureConfig)
    """How images are fed to the backbone."""
    imagenet_c_root: str | None = None
    """Folder of the released ImageNet-C or CIFAR-10-C images; small datasets are corrupted here if there is none."""
    severities: tuple[int, ...] = (1, 2, 3, 4, 5)
    """Severities of corruptions that are generated here; released images have all five."""
    corruption_cache: str | None = None
    """Folder that keeps the corrupted images generated here, for all runs that are shown them."""
    voc: DetectionConfig = field(default_factory=lambda: DetectionConfig(data_root="VOCdevkit"))
    """Fine-tuning of a detector on VOC07+12."""
    voc_trials: int = 1
    """Fine-tunings, with one seed after the other, whose mean is reported; MoCo's authors report that of five."""
    own: Mapping[str, Any] = field(default_factory=dict, metadata={"sections": own_sections})
    """Settings of further evaluations, each in a section of its name."""

    def __post_init__(self) -> None:
        known = measurable()
        for name in self.after_training:
            near = difflib.get_close_matches(name, list(known), n=1)
            hint = f": did you mean {near[0]}?" if near else ""
            require(
                name in known,
                f"after_training must hold some of {', '.join(known)}, got {name!r}{hint}",
                "after_training",
            )
        own = {name: self.own.get(name) or section() for name, section in own_sections().items()}
        object.__setattr__(self, "own", own)
        require(self.voc_trials >= 1, f"voc_trials must be at least 1, got {self.voc_trials}", "voc_trials")

    def images_shown(self, num_train: int) -> int:
        """How many images the networks see after training in all, of linear and k-NN: those of testing are left out."""
        epochs = 0
        if "linear" in self.after_training and self.linear.augment:
            epochs += self.linear.epochs
        if "knn" in self.after_training or ("linear" in self.after_training and not self.linear.augment):
            epochs += 1  # features are kept
        return epochs * num_train * len(self.networks)
