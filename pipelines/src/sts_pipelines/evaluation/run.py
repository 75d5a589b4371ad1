"""A run under evaluation: its networks, the images they are shown, and features that several evaluations share."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from sts_core.files import is_uri
from sts_eval import Features, LinearProbeResult, extract_features
from sts_methods import TrainingConfig, build_method, evaluation_data, load_backbone, start_from_
from sts_pipelines.config.pipeline import PipelineConfig

FEATURES = ".features"
"""Where a run folder keeps features while it is evaluated."""


class EvaluatedRun:
    """One run under evaluation; features are computed once per network, whoever needs them."""

    def __init__(
        self,
        folder: Path,
        pipeline: PipelineConfig,
        device: torch.device,
        *,
        teacher: str | None = None,
        results: Path | None = None,
    ) -> None:
        self.folder, self.results, self.pipeline, self.device = folder, results or folder, pipeline, device
        self.teacher = teacher
        self.config = pipeline.evaluation
        # Of ImageNet 10 GB per network: in a file that all ranks map, and that a killed evaluation reuses. With
        # a URI for storage the ranks may share no folder, and each holds all features in memory.
        self.cache = None if is_uri(pipeline.cluster.storage_path) else self.results / FEATURES
        self.probes: dict[str, LinearProbeResult] = {}
        self._features: dict[str, tuple[Features, Features]] = {}
        self._data: tuple[Any, Any] | None = None

    @property
    def data(self) -> tuple[Any, Any]:
        """Training and test images with their labels."""
        if self._data is None:
            self._data = evaluation_data(self.pipeline.training.data)
        return self._data

    @property
    def images(self) -> str:
        """The fingerprint of these images."""
        return images_shown(self.data)

    def backbone(self, network: str) -> nn.Module:
        """The backbone of the student, of the teacher under evaluation, or of both before the first step."""
        if network == "untrained":
            return _before_the_first_step(self.pipeline.training).to(self.device)
        name = f"bank/{self.teacher}" if network == "teacher" and self.teacher else network
        module, _ = load_backbone(self.folder / f"{name}.safetensors")
        return module.to(self.device)

    def features(self, network: str) -> tuple[Features, Features]:
        """Features of the training and the test images."""
        if network not in self._features:
            backbone = self.backbone(network)
            train, test = (
                extract_features(backbone, split, self.config.features, cache=self.cache, device=self.device)
                for split in self.data
            )
            self._features[network] = (train, test)
        return self._features[network]


def images_shown(data: tuple[Any, Any]) -> str:
    """The fingerprint of training and test images."""
    return "; ".join(split.fingerprint() for split in data)


def _before_the_first_step(training: TrainingConfig) -> nn.Module:
    """The backbone that student and teacher start from: the seed's, or the trained one that the config names."""
    method = build_method(training.method, seed=training.seed)
    if training.initial.weights is not None:
        start_from_(method, training.initial, training.method)
    return method.backbone("student")
