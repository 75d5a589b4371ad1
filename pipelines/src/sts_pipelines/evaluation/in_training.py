"""Measuring networks while they train: the quick evaluations, on all labelled images or a balanced part of them."""

from collections.abc import Sequence
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.utils.data import Subset

from sts_core import Network
from sts_eval import Features, extract_features
from sts_methods import Observation, evaluation_data
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.evaluation.record import record_of


class LabelledImages:
    """Images that networks in training are shown; their features are computed once for all evaluations of a step."""

    def __init__(self, pipeline: PipelineConfig, *, num_train: int | None = None, num_test: int | None = None) -> None:
        train, test = evaluation_data(pipeline.training.data)
        self.train, self.test = _part(train, num_train), _part(test, num_test)
        self._config = pipeline.evaluation.features
        self._features: dict[nn.Module, tuple[Features, Features]] = {}

    def features(self, backbone: nn.Module) -> tuple[Features, Features]:
        """Features of the training and the test images."""
        if backbone not in self._features:
            train, test = (extract_features(backbone, split, self._config) for split in (self.train, self.test))
            self._features[backbone] = (train, test)
        return self._features[backbone]

    def forget(self) -> None:
        """The networks will have changed."""
        self._features.clear()


class InTraining:
    """A function from the method in training to numbers by their names, each the first of a quick evaluation."""

    def __init__(self, pipeline: PipelineConfig, metrics: Sequence[str], images: LabelledImages) -> None:
        self.images, self._values = images, dict[str, Any]()
        for metric in metrics:
            evaluation, network, _ = metric.split("/")
            in_training = record_of(evaluation).in_training
            assert in_training is not None, "the config refuses others"
            self._values[metric] = in_training(pipeline, network, images)

    def __call__(self, method: nn.Module) -> dict[str, float]:
        try:
            return {metric: value(method) for metric, value in self._values.items()}
        finally:
            self.images.forget()


def observation_of(pipeline: PipelineConfig) -> Observation | None:
    """What the pipeline wants to be measured during training, if anything."""
    during = pipeline.evaluation.during_training
    if during.every_epochs is None:
        return None
    metrics = [
        f"{name}/{network}/{record_of(name).about.metrics[0].name}"
        for name in during.evaluations
        for network in pipeline.evaluation.networks
        if network in get_args(Network)  # an untrained one is on no curve
    ]
    images = LabelledImages(pipeline, num_train=during.num_train, num_test=during.num_test)
    return Observation(every_epochs=during.every_epochs, measure=InTraining(pipeline, metrics, images))


def _part(dataset: Any, count: int | None) -> Any:
    """`count` of the images, as many of each class as can be, the same in every run."""
    if count is None or count >= len(dataset):
        return dataset
    return Subset(dataset, balanced(torch.as_tensor(dataset.targets), count))


def balanced(labels: Tensor, count: int) -> list[int]:
    """`count` indices, drawn from each class in turn, in ascending order."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    by_class = order[labels[order].argsort(stable=True)]  # shuffled within each class
    sizes = torch.bincount(labels)
    firsts = sizes.cumsum(0) - sizes
    turn = torch.arange(len(labels)) - firsts[labels[by_class]]  # an image's place within its class
    chosen: list[int] = by_class[turn.argsort(stable=True)[:count]].sort().values.tolist()
    return chosen
