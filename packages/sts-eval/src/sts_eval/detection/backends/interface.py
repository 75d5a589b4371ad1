"""What the rest of detection transfer asks of a backend: a module that takes samples and gives losses or detections."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from sts_eval.detection.average_precision import Detections
from sts_eval.detection.samples import Sample

PIXEL_MEAN = (123.675, 116.28, 103.53)  # MoCo: RGB, the statistics that the backbones were trained with
PIXEL_STD = (58.395, 57.12, 57.375)

# What a backbone does not bring; these tensors start anew, and no others may. In the torchvision backend's names.
NEW_LAYERS = ("rpn.head.", "roi_heads.box_predictor.", "roi_heads.box_head.norm.")


class Detector(nn.Module, ABC):
    """Faster R-CNN R50-C4 with one more norm behind res5."""

    @abstractmethod
    def forward(self, samples: Sequence[Sample]) -> dict[str, torch.Tensor] | list[Detections]:
        """The named losses in training mode, one `Detections` per sample in evaluation mode."""

    @abstractmethod
    def stage_features(self, images: torch.Tensor) -> list[torch.Tensor]:
        """The outputs of the four stages for normalised images [N, 3, H, W], before the added norm."""

    @abstractmethod
    def tensor_name(self, name: str) -> str:
        """This backend's name of a tensor that the torchvision backend calls `name`."""


def to_detections(sample: Sample, boxes: torch.Tensor, scores: torch.Tensor, classes: torch.Tensor) -> Detections:
    """Detections as arrays on the host."""
    return Detections(
        image_id=sample.image_id,
        boxes=boxes.cpu().numpy().astype(np.float32),
        scores=scores.cpu().numpy().astype(np.float32),
        classes=classes.cpu().numpy().astype(np.int64),
    )
