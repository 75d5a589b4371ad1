"""How detectron2 names and runs the ResNets that torchvision and timm share; needs no detectron2."""

import re
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

_STAGE = re.compile(r"layer([1-4])\.")


def detectron2_name(name: str) -> str:
    """The full name in detectron2's R50-C4 model of a tensor of torchvision's ResNet.

    conv1, bn1 -> stem.conv1, stem.conv1.norm; layer1..4 -> res2..5; bnN -> convN.norm; downsample.0, .1 -> shortcut,
    shortcut.norm. Stem and res2..4 are the backbone, res5 is part of the box head.
    """
    name = _STAGE.sub(lambda stage: f"res{int(stage[1]) + 1}.", name)
    name = re.sub(r"\bbn(\d)\.", r"conv\1.norm.", name)
    name = name.replace("downsample.0.", "shortcut.").replace("downsample.1.", "shortcut.norm.")
    if name.startswith("res5."):
        return f"roi_heads.{name}"
    return f"backbone.{name}" if name.startswith("res") else f"backbone.stem.{name}"


@torch.no_grad()
def detectron2_features(state: Mapping[str, Tensor], images: Tensor) -> Tensor:
    """Pooled res5 features of the network that detectron2 builds from `state` with STRIDE_IN_1X1 False, in eval mode.

    Written from detectron2's structure and reading tensors by its names only, so that it can contradict
    `detectron2_name`.
    """
    x = _convolve(state, "backbone.stem.conv1", images, stride=2, padding=3).relu()
    x = F.max_pool2d(x, kernel_size=3, stride=2, padding=1)
    for stage, prefix in ((2, "backbone"), (3, "backbone"), (4, "backbone"), (5, "roi_heads")):
        block = 0
        while f"{prefix}.res{stage}.{block}.conv1.weight" in state:
            x = _block(state, f"{prefix}.res{stage}.{block}", x, stride=2 if stage > 2 and block == 0 else 1)
            block += 1
    return x.mean(dim=(2, 3))


def _block(state: Mapping[str, Tensor], prefix: str, x: Tensor, *, stride: int) -> Tensor:
    """A bottleneck block (stride in its 3x3 convolution) or, without conv3, a basic block (stride in the first)."""
    bottleneck = f"{prefix}.conv3.weight" in state
    y = _convolve(state, f"{prefix}.conv1", x, stride=1 if bottleneck else stride).relu()
    y = _convolve(state, f"{prefix}.conv2", y, stride=stride if bottleneck else 1)
    if bottleneck:
        y = _convolve(state, f"{prefix}.conv3", y.relu())
    if f"{prefix}.shortcut.weight" in state:
        x = _convolve(state, f"{prefix}.shortcut", x, stride=stride)
    return (x + y).relu()


def _convolve(
    state: Mapping[str, Tensor], prefix: str, x: Tensor, *, stride: int = 1, padding: int | None = None
) -> Tensor:
    weight = state[f"{prefix}.weight"]
    padding = weight.shape[2] // 2 if padding is None else padding
    x = F.conv2d(x, weight, stride=stride, padding=padding, groups=x.shape[1] // weight.shape[1])
    norm = {key: state[f"{prefix}.norm.{key}"] for key in ("running_mean", "running_var", "weight", "bias")}
    return F.batch_norm(x, **norm)  # type: ignore[arg-type]  # the four tensors, not the flags behind them
