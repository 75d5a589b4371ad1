"""Backbones in the formats of other libraries, read back and compared before anything is said."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from sts_core import ConfigError, StateError
from sts_core.files import replacing
from sts_core.weights import load_strictly
from sts_methods.runs.backbone_files import load_backbone
from sts_methods.runs.detectron2 import detectron2_features, detectron2_name

Format = Literal["torchvision", "timm", "detectron2"]


_SUFFIXES: Mapping[str, str] = {"torchvision": ".pth", "timm": ".safetensors", "detectron2": ".pth"}


_CLASSIFIER = {"fc.weight", "fc.bias"}  # of torchvision's ResNets; a backbone has none


_TOLERANCE = 1e-5  # relative, for outputs of two implementations of one network in float32


@dataclass(frozen=True, kw_only=True)
class ExportReport:
    """What was written, and how far the exported network's outputs are from ours."""

    path: Path
    """The file."""
    to: Format
    """The library that reads it."""
    num_tensors: int
    """Tensors in the file: all of the backbone's."""
    max_difference: float
    """Largest absolute difference between features of the network read back from the file and our own."""


def export(source: str | Path, destination: str | Path, *, to: Format) -> ExportReport:
    """Convert a saved backbone, read the result back into the other library's network and compare outputs.

    `source` is a backbone that `fit` or `save_backbone` wrote, `destination` the file to write and `to` who reads it:

    torchvision   .pth, a state dict for `torchvision.models.<name>()`: every tensor but those of `fc`
    timm          .safetensors, a state dict for `timm.create_model(name, num_classes=0)`
    detectron2    .pth, {"model": ...} with the full names of an R50-C4 detector: every tensor of its stem and res2..5

    >>> network = build_backbone("resnet18")
    >>> saved = {"backbone": "resnet18", "stem": "imagenet", "network": "teacher", "method": "byol", "step": 0}
    >>> _ = save_backbone("teacher", network, smoothing={}, **saved)
    >>> export("teacher.safetensors", "resnet18.pth", to="torchvision").num_tensors
    120
    """
    destination = Path(destination)
    if to not in get_args(Format):
        raise ConfigError(f"export goes to one of {', '.join(get_args(Format))}, got {to!r}")
    if destination.suffix != _SUFFIXES[to]:
        raise ConfigError(f"a file for {to} ends in {_SUFFIXES[to]}, got {destination.name!r}: rename it")
    module, manifest = load_backbone(source)
    name = str(manifest["backbone"])
    _check_exportable(module, name, str(manifest["stem"]), to)
    images = _test_images(module)
    with torch.no_grad():
        expected = module(images)
    with replacing(destination) as partial:  # only a file that was read back and compared gets the name
        _CONVERTERS[to](module.state_dict(), partial)
        difference = (_READERS[to](name, partial, images) - expected).abs().max().item()
        if not difference <= _TOLERANCE * expected.abs().max().item():
            raise StateError(f"exported outputs must equal ours, {to} differs by {difference:.3g}: please report this")
    return ExportReport(path=destination, to=to, num_tensors=len(module.state_dict()), max_difference=difference)


def _to_torchvision(state: Mapping[str, Tensor], path: Path) -> None:
    torch.save(dict(state), path)


def _to_timm(state: Mapping[str, Tensor], path: Path) -> None:
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, path)


def _to_detectron2(state: Mapping[str, Tensor], path: Path) -> None:
    renamed = {detectron2_name(name): tensor for name, tensor in state.items()}
    if len(renamed) != len(state):
        raise StateError(f"every tensor needs a name of its own, {len(state)} got {len(renamed)}: please report this")
    torch.save({"model": renamed}, path)


@torch.no_grad()
def _torchvision_features(name: str, path: Path, images: Tensor) -> Tensor:
    import torchvision

    network = torchvision.models.get_model(name, weights=None).eval()
    load_strictly(network, torch.load(path, weights_only=True), origin=str(path), missing=_CLASSIFIER)
    network.fc = nn.Identity()
    features: Tensor = network(images)
    return features


@torch.no_grad()
def _timm_features(name: str, path: Path, images: Tensor) -> Tensor:
    import timm

    network = timm.create_model(name, num_classes=0).eval()
    load_strictly(network, load_file(path), origin=str(path))
    features: Tensor = network(images)
    return features


def _detectron2_features(name: str, path: Path, images: Tensor) -> Tensor:
    return detectron2_features(torch.load(path, weights_only=True)["model"], images)


_CONVERTERS: Mapping[str, Callable[[Mapping[str, Tensor], Path], None]] = {
    "torchvision": _to_torchvision,
    "timm": _to_timm,
    "detectron2": _to_detectron2,
}


_READERS: Mapping[str, Callable[[str, Path, Tensor], Tensor]] = {
    "torchvision": _torchvision_features,
    "timm": _timm_features,
    "detectron2": _detectron2_features,
}


def _check_exportable(module: nn.Module, name: str, stem: str, to: Format) -> None:
    """Other libraries have no CIFAR stem; torchvision and detectron2 share ResNets with us and nothing else."""
    if stem != "imagenet":
        raise ConfigError(f'{to} has no network with the CIFAR stem, got {name} with stem="{stem}": use save_backbone')
    if to == "timm":
        return
    import torchvision

    known = name in torchvision.models.list_models() and "res" in name
    names = set(torchvision.models.get_model(name, weights=None).state_dict()) if known else set()
    if names - _CLASSIFIER != set(module.state_dict()):
        raise ConfigError(
            f"{to} takes the ResNets of torchvision.models such as resnet50, got {name!r}: export to timm"
        )


def _test_images(module: nn.Module) -> Tensor:
    """Two noise images of the size that the network was designed for."""
    size = getattr(module, "pretrained_cfg", {}).get("input_size", (3, 224, 224))
    return torch.randn((2, *size), generator=torch.Generator().manual_seed(0))
