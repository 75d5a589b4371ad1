"""torchvision's region proposal network with detectron2's losses, sampling and proposal filter."""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead
from torchvision.ops import batched_nms, clip_boxes_to_image

from sts_eval.detection.backends.anchors import GridAnchors
from sts_eval.detection.config import DetectionConfig
from sts_eval.detection.draws import Purpose, draw_subset
from sts_eval.detection.errors import DivergenceError

Targets = Sequence[Mapping[str, torch.Tensor]]


def sample_labels(
    labels: torch.Tensor, *, count: int, positive_fraction: float, purpose: Purpose, key: int
) -> torch.Tensor:
    """Ascending indices of `count` labels that are not −1, at most `positive_fraction` of them positive (> 0)."""
    positive = torch.nonzero(labels > 0).flatten()
    negative = torch.nonzero(labels == 0).flatten()
    num_positive = min(len(positive), int(count * positive_fraction))
    chosen = [
        group[draw_subset(purpose, key, part, size=len(group), count=quota).to(labels.device)]
        for part, (group, quota) in enumerate([(positive, num_positive), (negative, count - num_positive)])
    ]
    return torch.cat(chosen).sort().values


class ProposalNetwork(RegionProposalNetwork):  # type: ignore[misc]  # torchvision is untyped
    """Finds regions that hold some object.

    With the S sampled anchors of each of N images, of which P are positive:

        loss_objectness = Σ_S BCE / (256·N),   loss_rpn_box_reg = Σ_P |Δ − Δ*|₁ / (256·N)

    where 256 is the number of samples asked for, even if an image has fewer.
    """

    def __init__(self, config: DetectionConfig, channels: int) -> None:
        super().__init__(
            GridAnchors(config.anchor_sizes, config.anchor_ratios),
            RPNHead(channels, config.num_anchors),
            fg_iou_thresh=0.7,  # d2
            bg_iou_thresh=0.3,  # d2
            batch_size_per_image=config.rpn_samples,
            positive_fraction=0.5,  # d2
            pre_nms_top_n={"training": config.rpn_train_pre_nms, "testing": config.rpn_test_pre_nms},
            post_nms_top_n={"training": config.rpn_train_post_nms, "testing": config.rpn_test_post_nms},
            nms_thresh=config.rpn_nms,
        )
        self.num_samples = config.rpn_samples

    def assign_targets_to_anchors(
        self, anchors: list[torch.Tensor], targets: Targets
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Label every anchor 1, 0 or, if it is ambiguous or was not sampled, −1."""
        labels, boxes = super().assign_targets_to_anchors(anchors, targets)
        sampled = []
        for label, target in zip(labels, targets, strict=True):
            indices = sample_labels(
                label, count=self.num_samples, positive_fraction=0.5, purpose="anchors", key=int(target["key"])
            )
            kept = torch.full_like(label, -1)
            kept[indices] = label[indices]
            sampled.append(kept)
        return sampled, boxes

    def compute_loss(
        self,
        objectness: torch.Tensor,
        pred_bbox_deltas: torch.Tensor,
        labels: list[torch.Tensor],
        regression_targets: list[torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The two losses over the anchors whose label is not −1."""
        divisor = self.num_samples * len(labels)
        label = torch.cat(labels)
        target = torch.cat(regression_targets)
        positive, valid = label == 1, label >= 0
        box_loss = F.l1_loss(pred_bbox_deltas[positive], target[positive], reduction="sum")
        logits = objectness.flatten()[valid]
        objectness_loss = F.binary_cross_entropy_with_logits(logits, label[valid], reduction="sum")
        return objectness_loss / divisor, box_loss / divisor

    def filter_proposals(
        self,
        proposals: torch.Tensor,
        objectness: torch.Tensor,
        image_shapes: list[tuple[int, int]],
        num_anchors_per_level: list[int],
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The best proposals of each image, by falling logit (a probability would saturate and tie)."""
        logits = objectness.detach().reshape(len(image_shapes), -1)
        top_logits, indices = logits.topk(min(self.pre_nms_top_n(), logits.shape[1]), dim=1)
        kept = [
            self._filter_image(proposals[image, indices[image]], top_logits[image], shape)
            for image, shape in enumerate(image_shapes)
        ]
        return [boxes for boxes, _ in kept], [scores for _, scores in kept]

    def _filter_image(
        self, boxes: torch.Tensor, logits: torch.Tensor, shape: tuple[int, int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        finite = torch.isfinite(boxes).all(dim=1) & torch.isfinite(logits)
        if not bool(finite.all()):
            if self.training:
                raise DivergenceError("proposals must be finite, got NaN or infinity: lower the learning rate")
            boxes, logits = boxes[finite], logits[finite]
        boxes = clip_boxes_to_image(boxes, shape)
        nonempty = (boxes[:, 2:] > boxes[:, :2]).all(dim=1)
        boxes, logits = boxes[nonempty], logits[nonempty]
        level = torch.zeros(len(boxes), dtype=torch.int64, device=boxes.device)
        keep = batched_nms(boxes, logits, level, self.nms_thresh)[: self.post_nms_top_n()]
        return boxes[keep], logits[keep]
