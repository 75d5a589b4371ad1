"""Wide residual networks for small images, as FixMatch uses them (Zagoruyko & Komodakis, 2016; Sohn et al., 2020)."""

import torch.nn.functional as F
from torch import Tensor, nn

from sts_core import ConfigError

NEGATIVE_SLOPE = 0.1  # google-research/fixmatch libml/models.py, kekmodel models/wideresnet.py
BN_MOMENTUM = 0.001  # torch's convention; .999 in TensorFlow's (google-research/fixmatch)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, momentum=BN_MOMENTUM)


def _conv(channels_in: int, channels_out: int, size: int, stride: int = 1) -> nn.Conv2d:
    # No bias, as in kekmodel; google's convolutions have one, which the norm after them cancels in most places.
    return nn.Conv2d(channels_in, channels_out, size, stride, padding=size // 2, bias=False)


class Block(nn.Module):
    """Pre-activation residual block: x + conv(act(bn(conv(act(bn(x))))))."""

    def __init__(self, channels_in: int, channels_out: int, *, stride: int, activate_before_residual: bool) -> None:
        super().__init__()
        self.bn1, self.conv1 = _norm(channels_in), _conv(channels_in, channels_out, 3, stride)
        self.bn2, self.conv2 = _norm(channels_out), _conv(channels_out, channels_out, 3)
        self.shortcut = _conv(channels_in, channels_out, 1, stride) if channels_in != channels_out else nn.Identity()
        self.activate_before_residual = activate_before_residual

    def forward(self, x: Tensor) -> Tensor:
        y = F.leaky_relu(self.bn1(x), NEGATIVE_SLOPE)
        # The first block of the network also feeds its shortcut with the activated input (google libml/models.py).
        x = y if self.activate_before_residual else x
        y = F.leaky_relu(self.bn2(self.conv1(y)), NEGATIVE_SLOPE)
        return self.shortcut(x) + self.conv2(y)  # type: ignore[no-any-return]


class WideResNet(nn.Module):
    """WRN-depth-width: three stages of (depth − 4)/6 blocks with 16, 32 and 64 times `width` channels.

    Maps [N, 3, H, W] to pooled features [N, 64 · width]. It equals neither reference: google's batch norms have an ε of
    1e-3 (TensorFlow's default) and its convolutions biases, and kekmodel's first blocks of stages 2 and 3 feed their
    convolution with x as it came, neither normalised nor activated, which looks like an oversight.
    """

    def __init__(self, *, depth: int, width: int) -> None:
        super().__init__()
        if depth < 10 or (depth - 4) % 6 or width < 1:
            raise ConfigError(
                f"a wide ResNet has depth 6n + 4 and width of at least 1, got wrn_{depth}_{width}: use wrn_28_2, say"
            )
        channels = [16, 16 * width, 32 * width, 64 * width]
        num_blocks = (depth - 4) // 6
        self.num_features = channels[3]
        self.conv = _conv(3, channels[0], 3)
        self.stages = nn.Sequential(
            *(self._stage(channels[i], channels[i + 1], num_blocks, first=i == 0) for i in range(3))
        )
        self.norm = _norm(channels[3])
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="leaky_relu")

    @staticmethod
    def _stage(channels_in: int, channels_out: int, num_blocks: int, *, first: bool) -> nn.Sequential:
        stride = 1 if first else 2
        head = Block(channels_in, channels_out, stride=stride, activate_before_residual=first)
        rest = (
            Block(channels_out, channels_out, stride=1, activate_before_residual=False) for _ in range(1, num_blocks)
        )
        return nn.Sequential(head, *rest)

    def forward(self, images: Tensor) -> Tensor:
        x = F.leaky_relu(self.norm(self.stages(self.conv(images))), NEGATIVE_SLOPE)
        return x.mean(dim=(2, 3))
