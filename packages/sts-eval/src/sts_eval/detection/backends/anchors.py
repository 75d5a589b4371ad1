"""Anchor boxes on a grid of stride 16, in detectron2's order and without rounding."""

import math
from collections.abc import Sequence

import torch
from torch import nn
from torchvision.models.detection.image_list import ImageList

STRIDE = 16  # of C4 features


class GridAnchors(nn.Module):
    """Anchors of every size and ratio, centred on multiples of 16 px.

    For size s and ratio a = h / w: w = √(s² / a), h = a·w. torchvision's own generator rounds the corners, orders by
    ratio first and takes the stride from the padded image's size; a detector trained with one cannot use the other.
    """

    boxes: torch.Tensor

    def __init__(self, sizes: Sequence[float], ratios: Sequence[float]) -> None:
        super().__init__()
        boxes = []
        for size in sizes:
            for ratio in ratios:
                width = math.sqrt(size**2 / ratio)
                height = ratio * width
                boxes.append([-width / 2, -height / 2, width / 2, height / 2])
        self.register_buffer("boxes", torch.tensor(boxes), persistent=False)

    def forward(self, images: ImageList, features: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """For each image the anchors [H·W·A, 4] of the one feature map [N, C, H, W]; row, column, anchor."""
        height, width = features[0].shape[-2:]
        y, x = (torch.arange(n, dtype=torch.float32, device=self.boxes.device) * STRIDE for n in (height, width))
        grid_y, grid_x = torch.meshgrid(y, x, indexing="ij")
        shifts = torch.stack([grid_x, grid_y, grid_x, grid_y], dim=-1).view(-1, 1, 4)
        anchors = (shifts + self.boxes).reshape(-1, 4)
        return [anchors] * len(images.image_sizes)
