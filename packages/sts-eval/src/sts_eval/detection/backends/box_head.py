"""torchvision's box head around res5, with detectron2's pooling, classes, losses and final filter."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.ops import batched_nms, clip_boxes_to_image, roi_align

from sts_eval.detection.backends.anchors import STRIDE
from sts_eval.detection.backends.proposals import Targets, sample_labels
from sts_eval.detection.backends.resnet import Norm, ResNetShape, build_stage
from sts_eval.detection.config import DetectionConfig
from sts_eval.detection.voc import VOC_CLASSES

POOLED_SIZE = 14  # d2, ROI_BOX_HEAD.POOLER_RESOLUTION


class AlignedPooling(nn.Module):
    """Crops 14x14 features of each proposal, half a pixel more exact than torchvision's default (aligned=False)."""

    def forward(self, features: Mapping[str, torch.Tensor], boxes: list[torch.Tensor], shapes: object) -> torch.Tensor:
        """Features [ΣR, C, 14, 14] for R boxes per image."""
        (feature,) = features.values()
        pooled: torch.Tensor = roi_align(feature, boxes, POOLED_SIZE, 1 / STRIDE, sampling_ratio=0, aligned=True)
        return pooled


class Res5Head(nn.Module):
    """Stage 4 of the ResNet, one more norm (MoCo, Res5ROIHeadsExtraNorm), and the mean over positions."""

    def __init__(self, shape: ResNetShape, norm: Norm) -> None:
        super().__init__()
        self.layer4 = build_stage(shape, 4, norm)
        self.norm = norm(shape.num_features)

    def forward(self, pooled: torch.Tensor) -> torch.Tensor:
        """[R, C, 14, 14] to [R, 2C]."""
        features: torch.Tensor = self.norm(self.layer4(pooled))
        return features.mean(dim=(2, 3))


class BoxPredictor(nn.Module):
    """Scores of K classes and, as the last one, background; a box correction for each of the K classes."""

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.cls_score = nn.Linear(num_features, num_classes + 1)
        self.bbox_pred = nn.Linear(num_features, num_classes * 4)
        for layer, std in ((self.cls_score, 0.01), (self.bbox_pred, 0.001)):  # d2
            nn.init.normal_(layer.weight, std=std)
            nn.init.zeros_(layer.bias)

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[R, C] to [R, K + 1] and [R, 4·K]."""
        return self.cls_score(features), self.bbox_pred(features)


class Res5RoIHeads(RoIHeads):  # type: ignore[misc]  # torchvision is untyped
    """Classifies proposals and corrects their boxes.

    With R sampled proposals over all images, of which P show an object:

        loss_classifier = mean_R CE,   loss_box_reg = Σ_P |Δ − Δ*|₁ / R
    """

    def __init__(self, config: DetectionConfig, shape: ResNetShape, norm: Norm) -> None:
        self.num_classes = len(VOC_CLASSES)
        super().__init__(
            AlignedPooling(),
            Res5Head(shape, norm),
            BoxPredictor(shape.num_features, self.num_classes),
            fg_iou_thresh=0.5,  # d2
            bg_iou_thresh=0.5,  # d2
            batch_size_per_image=config.roi_samples,
            positive_fraction=config.roi_positive_fraction,
            bbox_reg_weights=(10.0, 10.0, 5.0, 5.0),  # d2
            score_thresh=config.score_threshold,
            nms_thresh=config.box_nms,
            detections_per_img=config.detections_per_image,
        )
        self.num_samples = config.roi_samples
        self.positive_fraction = config.roi_positive_fraction

    def select_training_samples(
        self, proposals: list[torch.Tensor], targets: Targets
    ) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor], tuple[torch.Tensor, ...]]:
        """Add the objects to the proposals, sample, and give proposals, best objects, labels and box targets."""
        objects = [target["boxes"] for target in targets]
        # The parent's background is 0, so that class k is k + 1 here and in `labels`.
        shifted = [target["labels"] + 1 for target in targets]
        proposals = self.add_gt_proposals(proposals, objects)
        matched, labels = self.assign_targets_to_proposals(proposals, objects, shifted)
        for image, target in enumerate(targets):
            chosen = sample_labels(
                labels[image],
                count=self.num_samples,
                positive_fraction=self.positive_fraction,
                purpose="proposals",
                key=int(target["key"]),
            )
            proposals[image], labels[image] = proposals[image][chosen], labels[image][chosen]
            matched[image] = matched[image][chosen]
        best = [boxes[indices] for boxes, indices in zip(objects, matched, strict=True)]
        return proposals, best, labels, self.box_coder.encode(best, proposals)

    def forward(
        self,
        features: Mapping[str, torch.Tensor],
        proposals: list[torch.Tensor],
        image_shapes: list[tuple[int, int]],
        targets: Targets | None = None,
    ) -> tuple[list[dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
        """Detections in evaluation mode, losses in training mode; the other one is empty."""
        labels: list[torch.Tensor] = []
        regression_targets: tuple[torch.Tensor, ...] = ()
        if self.training:
            assert targets is not None
            with torch.no_grad():
                proposals, _, labels, regression_targets = self.select_training_samples(proposals, targets)
        pooled = self.box_roi_pool(features, proposals, image_shapes)
        logits, deltas = self.box_predictor(self.box_head(pooled))
        if self.training:
            return [], self.losses(logits, deltas, torch.cat(labels), torch.cat(regression_targets))
        return self.detections(logits, deltas, proposals, image_shapes), {}

    def losses(
        self, logits: torch.Tensor, deltas: torch.Tensor, labels: torch.Tensor, targets: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Cross entropy and L1; `labels` hold 0 for background and k + 1 for class k."""
        classes = torch.where(labels > 0, labels - 1, self.num_classes)
        positive = torch.nonzero(labels > 0).flatten()
        predicted = deltas.view(len(deltas), self.num_classes, 4)[positive, classes[positive]]
        box_loss = F.l1_loss(predicted, targets[positive], reduction="sum") / len(labels)
        return {"loss_classifier": F.cross_entropy(logits, classes), "loss_box_reg": box_loss}

    def detections(
        self,
        logits: torch.Tensor,
        deltas: torch.Tensor,
        proposals: list[torch.Tensor],
        image_shapes: list[tuple[int, int]],
    ) -> list[dict[str, torch.Tensor]]:
        """Boxes, scores and classes of each image, by falling score."""
        counts = [len(boxes) for boxes in proposals]
        boxes = self.box_coder.decode(deltas, proposals).view(-1, self.num_classes, 4)
        scores = F.softmax(logits, dim=-1)[:, :-1]
        split = zip(torch.split(boxes, counts), torch.split(scores, counts), image_shapes, strict=True)
        return [self._filter_image(*entry) for entry in split]

    def _filter_image(
        self, boxes: torch.Tensor, scores: torch.Tensor, shape: tuple[int, int]
    ) -> dict[str, torch.Tensor]:
        finite = torch.isfinite(boxes).all(dim=(1, 2)) & torch.isfinite(scores).all(dim=1)
        boxes, scores = clip_boxes_to_image(boxes[finite], shape), scores[finite]
        strong = scores > self.score_thresh  # [R, K]
        classes = torch.nonzero(strong)[:, 1]
        boxes, scores = boxes[strong], scores[strong]
        keep = batched_nms(boxes, scores, classes, self.nms_thresh)[: self.detections_per_img]
        return {"boxes": boxes[keep], "scores": scores[keep], "labels": classes[keep]}
