"""From a trained backbone to a detector: names, completeness and numbers.

A detector that silently starts from random weights trains, and ends some points lower; nothing but this module tells.
So every tensor of the backbone must find its place, every tensor of the detector must be filled but those of the new
layers, and the features must then be equal.

    backbone (torchvision, timm)    torchvision backend                    detectron2
    conv1, bn1                      backbone.conv1, backbone.bn1           backbone.stem.conv1, backbone.stem.conv1.norm
    layer1 ... layer3               backbone.layer1 ... backbone.layer3    backbone.res2 ... backbone.res4
    layer4                          roi_heads.box_head.layer4              roi_heads.res5
    bnN, downsample.0, .1           bnN, downsample.0, .1                  convN.norm, shortcut, shortcut.norm
"""

import copy
import re
from collections.abc import Mapping

import torch
from torch import nn

from sts_eval.detection.backends.interface import NEW_LAYERS, Detector
from sts_eval.detection.errors import ConversionError

_TRUNK = re.compile(r"(conv1|bn1|layer[1-4])\.")
_TO_DETECTRON2 = (
    (r"^backbone\.conv1\.", "backbone.stem.conv1."),
    (r"^backbone\.bn1\.", "backbone.stem.conv1.norm."),
    (r"^backbone\.layer1\.", "backbone.res2."),
    (r"^backbone\.layer2\.", "backbone.res3."),
    (r"^backbone\.layer3\.", "backbone.res4."),
    (r"^roi_heads\.box_head\.layer4\.", "roi_heads.res5."),
    (r"^roi_heads\.box_head\.norm\.", "roi_heads.res5.norm."),
    (r"\.bn(\d)\.", r".conv\1.norm."),
    (r"\.downsample\.0\.", ".shortcut."),
    (r"\.downsample\.1\.", ".shortcut.norm."),
    (r"^rpn\.head\.conv\.0\.0\.", "proposal_generator.rpn_head.conv."),
    (r"^rpn\.head\.cls_logits\.", "proposal_generator.rpn_head.objectness_logits."),
    (r"^rpn\.head\.bbox_pred\.", "proposal_generator.rpn_head.anchor_deltas."),
)


def trunk_state(backbone: nn.Module) -> dict[str, torch.Tensor]:
    """The tensors of the ResNet inside `backbone`, by torchvision's names; heads and wrappers are left out."""
    prefix = _trunk_prefix(backbone)
    state = {
        name.removeprefix(prefix): tensor for name, tensor in backbone.state_dict().items() if name.startswith(prefix)
    }
    return {name: tensor.detach().cpu() for name, tensor in state.items() if _TRUNK.match(name)}


def detector_name(name: str) -> str:
    """Where a backbone's tensor goes, in the torchvision backend's names."""
    return f"roi_heads.box_head.{name}" if name.startswith("layer4.") else f"backbone.{name}"


def detectron2_name(name: str) -> str:
    """detectron2's name of a tensor that the torchvision backend calls `name`."""
    for pattern, replacement in _TO_DETECTRON2:
        name = re.sub(pattern, replacement, name)
    return name


def load_trunk_(detector: Detector, state: Mapping[str, torch.Tensor]) -> int:
    """Fill `detector` with a backbone's tensors; return their number, which is 318 for ResNet-50."""
    source = {detector.tensor_name(detector_name(name)): tensor for name, tensor in state.items()}
    target = detector.state_dict()
    new = tuple(detector.tensor_name(prefix) for prefix in NEW_LAYERS)
    expected = {name for name in target if not name.startswith(new)}
    _check_names(expected, set(source))
    for name in sorted(expected):
        if source[name].shape != target[name].shape:
            shapes = f"{tuple(source[name].shape)} instead of {tuple(target[name].shape)}"
            raise ConversionError(
                f"tensors must keep their shape, got {shapes} for {name}: pass a plain bottleneck ResNet"
            )
    detector.load_state_dict({**target, **source})
    return len(source)


def compare_features(backbone: nn.Module, detector: Detector, *, image_size: int = 224) -> float:
    """The largest difference between the stages of `backbone` and of `detector` on a fixed image; raise above 1e-4.

    Equal tensors do not make equal networks: a stride in another convolution keeps all shapes and changes features.
    The difference is relative to the stage's largest feature.
    """
    ramp = torch.linspace(-2, 2, image_size)
    image = torch.stack([ramp[:, None] * ramp, ramp[:, None].expand(-1, image_size), (7 * ramp).sin() * ramp[:, None]])[
        None
    ]
    expected = _stage_outputs(backbone, image)
    was_training = detector.training
    with torch.no_grad():
        actual = detector.eval().stage_features(image.to(next(detector.parameters()).device))
    detector.train(was_training)
    differences = []
    for first, second in zip(expected, actual, strict=True):
        scale = first.abs().max().clamp(min=1e-12)
        differences.append(
            float((first - second.cpu()).abs().max() / scale) if first.shape == second.shape else float("inf")
        )
    if not max(differences) <= 1e-4:
        raise ConversionError(
            f"backbone and detector must give equal features, got relative differences {differences} in stages 1-4: "
            "pass a plain ResNet with its stride in the 3x3 convolutions, such as torchvision's and timm's resnet50"
        )
    return max(differences)


def _trunk_prefix(backbone: nn.Module) -> str:
    marker = "layer1.0.conv1.weight"
    prefixes = [name.removesuffix(marker) for name in backbone.state_dict() if name.endswith(marker)]
    if len(prefixes) != 1:
        raise ConversionError(
            f"a backbone must hold one ResNet with layer1 ... layer4, got {len(prefixes)} in "
            f"{type(backbone).__name__}: pass for instance a ResNet-50 of torchvision or timm"
        )
    return prefixes[0]


def _check_names(expected: set[str], found: set[str]) -> None:
    missing, extra = sorted(expected - found), sorted(found - expected)
    if missing or extra:
        raise ConversionError(
            f"a backbone must fill all {len(expected)} tensors of the detector's trunk, got {len(expected & found)}; "
            f"missing: {', '.join(missing) or 'none'}; unknown: {', '.join(extra) or 'none'}: "
            "pass a plain bottleneck ResNet with batch norm"
        )


def _stage_outputs(backbone: nn.Module, image: torch.Tensor) -> list[torch.Tensor]:
    """What layer1 ... layer4 give when the ResNet inside `backbone` runs in evaluation mode.

    A copy runs, in float32 on the CPU: the backbone is left alone, and a GPU's shorter floats do not blur the numbers.
    """
    trunk = copy.deepcopy(backbone.get_submodule(_trunk_prefix(backbone).rstrip("."))).float().cpu().eval()
    outputs: list[torch.Tensor] = []
    for stage in range(1, 5):
        trunk.get_submodule(f"layer{stage}").register_forward_hook(lambda *call: outputs.append(call[-1]))
    with torch.no_grad():
        trunk(image)
    return outputs
