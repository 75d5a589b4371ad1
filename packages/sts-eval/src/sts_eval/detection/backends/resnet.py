"""A bottleneck ResNet by its widths and depths, and the trunk that the torchvision backend is built from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from sts_eval.detection.errors import ConversionError

Norm = Callable[[int], nn.Module]


@dataclass(frozen=True, kw_only=True)
class ResNetShape:
    """What distinguishes one bottleneck ResNet from another; the defaults are ResNet-50."""

    stem_channels: int = 64
    """Output channels of the first convolution."""
    bottleneck_channels: int = 64
    """Channels inside the first stage's blocks; they double from stage to stage."""
    out_channels: int = 256
    """Output channels of the first stage; they double from stage to stage."""
    blocks: tuple[int, int, int, int] = (3, 4, 6, 3)
    """Blocks in each of the four stages."""

    @property
    def num_features(self) -> int:
        """Channels of the last stage."""
        return self.out_channels * 8


def infer_shape(state: Mapping[str, torch.Tensor]) -> ResNetShape:
    """The shape of a ResNet whose tensors have torchvision's (and timm's) names."""
    needed = ("conv1.weight", "layer1.0.conv1.weight", "layer1.0.conv3.weight")
    missing = [name for name in needed if name not in state]
    if missing:
        raise ConversionError(
            "detection transfer takes a bottleneck ResNet with tensors conv1, bn1, layer1 ... layer4, "
            f"got one without {', '.join(missing)}: pass for instance a ResNet-50 of torchvision or timm"
        )
    blocks = [len({name.split(".")[1] for name in state if name.startswith(f"layer{stage}.")}) for stage in range(1, 5)]
    if state["conv1.weight"].shape[-1] != 7:
        raise ConversionError(
            "detection transfer takes a ResNet with the 7x7 stem for large images, got one with a "
            f"{state['conv1.weight'].shape[-1]}x{state['conv1.weight'].shape[-1]} stem: train with the imagenet stem"
        )
    return ResNetShape(
        stem_channels=state["conv1.weight"].shape[0],
        bottleneck_channels=state["layer1.0.conv1.weight"].shape[0],
        out_channels=state["layer1.0.conv3.weight"].shape[0],
        blocks=(blocks[0], blocks[1], blocks[2], blocks[3]),
    )


def build_stage(shape: ResNetShape, stage: int, norm: Norm) -> nn.Sequential:
    """Stage 1 ... 4 as torchvision's `layer<stage>`: stride 2 in the first 3x3 convolution, but none in stage 1."""
    from torchvision.models.resnet import Bottleneck  # takes seconds: those who detect nothing do not wait for it

    outputs = shape.out_channels * 2 ** (stage - 1)
    inputs = shape.stem_channels if stage == 1 else outputs // 2
    stride = 1 if stage == 1 else 2
    # Bottleneck derives its inner width as planes · base_width / 64, with planes a quarter of the outputs.
    base_width = 64 * 4 * shape.bottleneck_channels // shape.out_channels
    shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))
    blocks = [Bottleneck(inputs, outputs // 4, stride, shortcut, base_width=base_width, norm_layer=norm)]
    for _ in range(shape.blocks[stage - 1] - 1):
        blocks.append(Bottleneck(outputs, outputs // 4, base_width=base_width, norm_layer=norm))
    return nn.Sequential(*blocks)


class ResNetC4(nn.Module):
    """Stem and stages 1-3 (in Faster R-CNN's terms up to C4): images to features at a sixteenth of their size."""

    def __init__(self, shape: ResNetShape, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, shape.stem_channels, 7, 2, 3, bias=False)
        self.bn1 = norm(shape.stem_channels)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = build_stage(shape, 1, norm)
        self.layer2 = build_stage(shape, 2, norm)
        self.layer3 = build_stage(shape, 3, norm)

    def stages(self, images: torch.Tensor) -> list[torch.Tensor]:
        """The outputs of the three stages for normalised images [N, 3, H, W]."""
        stem = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        first = self.layer1(stem)
        second = self.layer2(first)
        return [first, second, self.layer3(second)]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The output of stage 3 for normalised images [N, 3, H, W]: [N, C, ⌈H/16⌉, ⌈W/16⌉]."""
        return self.stages(images)[-1]


class BottleneckResNet(ResNetC4):
    """A whole ResNet of any shape as a backbone: images to pooled features, with torchvision's names."""

    def __init__(self, shape: ResNetShape, norm: Norm = nn.BatchNorm2d) -> None:
        super().__init__(shape, norm)
        self.layer4 = build_stage(shape, 4, norm)
        self.num_features = shape.num_features

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """[N, 3, H, W] to [N, num_features]."""
        features: torch.Tensor = self.layer4(super().forward(images))
        return features.mean(dim=(2, 3))
