"""Faster R-CNN R50-C4 from torchvision's parts, equal to detectron2's in every number.

torchvision's stock detector differs from detectron2's in anchors, pooling, losses, normalisers, class order, top-n,
resizing and padding. Here each of them follows detectron2, so that one set of weights gives the same detections and,
where no sampling is involved, the same losses in both.
"""

from collections.abc import Sequence

import torch
from torch.nn import functional as F
from torchvision.models.detection.image_list import ImageList

from sts_eval.detection.average_precision import Detections
from sts_eval.detection.backends.batch_norm import CrossRankBatchNorm2d
from sts_eval.detection.backends.box_head import Res5RoIHeads
from sts_eval.detection.backends.interface import PIXEL_MEAN, PIXEL_STD, Detector, to_detections
from sts_eval.detection.backends.proposals import ProposalNetwork
from sts_eval.detection.backends.resnet import ResNetC4, ResNetShape
from sts_eval.detection.config import DetectionConfig
from sts_eval.detection.samples import Sample


class TorchvisionDetector(Detector):
    """The detector of the torchvision backend."""

    pixel_mean: torch.Tensor
    pixel_std: torch.Tensor

    def __init__(self, config: DetectionConfig, shape: ResNetShape) -> None:
        super().__init__()
        self.backbone = ResNetC4(shape, CrossRankBatchNorm2d)
        self.rpn = ProposalNetwork(config, shape.out_channels * 4)
        self.roi_heads = Res5RoIHeads(config, shape, CrossRankBatchNorm2d)
        for name, values in (("pixel_mean", PIXEL_MEAN), ("pixel_std", PIXEL_STD)):
            self.register_buffer(name, torch.tensor(values).view(3, 1, 1), persistent=False)

    def forward(self, samples: Sequence[Sample]) -> dict[str, torch.Tensor] | list[Detections]:
        """The four losses in training mode, one `Detections` per sample in evaluation mode."""
        images = self._to_batch(samples)
        targets = self._to_targets(samples) if self.training else None
        features = {"c4": self.backbone(images.tensors)}
        proposals, losses = self.rpn(images, features, targets)
        found, box_losses = self.roi_heads(features, proposals, images.image_sizes, targets)
        if self.training:
            return {**losses, **box_losses}
        return [self._to_original(sample, entry) for sample, entry in zip(samples, found, strict=True)]

    def stage_features(self, images: torch.Tensor) -> list[torch.Tensor]:
        """The outputs of the four stages for normalised images [N, 3, H, W], before the added norm."""
        stages = self.backbone.stages(images)
        return [*stages, self.roi_heads.box_head.layer4(stages[-1])]

    def tensor_name(self, name: str) -> str:
        """The name itself: the common names are this backend's."""
        return name

    def _to_batch(self, samples: Sequence[Sample]) -> ImageList:
        """Normalised images, padded with zeros on the right and below to the largest (no rounding up to 32)."""
        device = self.pixel_mean.device
        images = [(sample.image.to(device).float() - self.pixel_mean) / self.pixel_std for sample in samples]
        height, width = (max(image.shape[side] for image in images) for side in (1, 2))
        padded = [F.pad(image, (0, width - image.shape[2], 0, height - image.shape[1])) for image in images]
        return ImageList(torch.stack(padded), [(image.shape[1], image.shape[2]) for image in images])

    def _to_targets(self, samples: Sequence[Sample]) -> list[dict[str, torch.Tensor]]:
        device = self.pixel_mean.device
        return [
            {"boxes": sample.boxes.to(device), "labels": sample.classes.to(device), "key": torch.tensor(sample.key)}
            for sample in samples
        ]

    @staticmethod
    def _to_original(sample: Sample, found: dict[str, torch.Tensor]) -> Detections:
        """Scale detections back to the file's size and drop what has no area there."""
        height, width = sample.original_size
        boxes = found["boxes"].clone()
        boxes[:, 0::2] = (boxes[:, 0::2] * (width / sample.image.shape[2])).clamp(0, width)
        boxes[:, 1::2] = (boxes[:, 1::2] * (height / sample.image.shape[1])).clamp(0, height)
        nonempty = (boxes[:, 2:] > boxes[:, :2]).all(dim=1)
        return to_detections(sample, boxes[nonempty], found["scores"][nonempty], found["labels"][nonempty])
