"""Backbones on disk: our own format (safetensors and a JSON manifest), and those of other libraries.

teacher.safetensors   the tensors, under the network's own names
teacher.json          {"format": "sts-backbone", "version": 1, "backbone": "resnet50", "stem": "imagenet",
                       "network": "teacher", "method": "byol", "step": 250000, "num_features": 2048,
                       "tensors": 318, "sha256": "..."}
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from sts_core.errors import ConfigError, StateError
from sts_methods.backbones import Stem, build_backbone, num_features
from sts_methods.detectron2_naming import detectron2_features, detectron2_name
from sts_methods.method import Network

Format = Literal["torchvision", "timm", "detectron2"]
_SUFFIXES: Mapping[str, str] = {"torchvision": ".pth", "timm": ".safetensors", "detectron2": ".pth"}
_MANIFEST = {"format": "sts-backbone", "version": 1}
_CLASSIFIER = {"fc.weight", "fc.bias"}  # of torchvision's ResNets; a backbone has none
_TOLERANCE = 1e-5  # relative, for outputs of two implementations of one network in float32


def save_backbone(
    path: str | Path,
    module: nn.Module,
    *,
    backbone: str,
    stem: Stem,
    network: Network,
    method: str,
    step: int,
    **details: Any,
) -> Path:
    """Write `path`.safetensors and `path`.json; `details` are further JSON values for the manifest.

    Both files appear whole or not at all, and the manifest, which holds the tensors' hash, comes last.
    """
    tensors_path, manifest_path = _paths(path)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in module.state_dict().items()}
    tensors_path.parent.mkdir(parents=True, exist_ok=True)
    _write(tensors_path, lambda partial: save_file(tensors, partial))
    manifest = {
        **_MANIFEST,
        "backbone": backbone,
        "stem": stem,
        "network": network,
        "method": method,
        "step": step,
        "num_features": num_features(module),
        "tensors": len(tensors),
        "sha256": _sha256(tensors_path),
        **details,
    }
    _write(manifest_path, lambda partial: partial.write_text(json.dumps(manifest, indent=2) + "\n"))
    return tensors_path


def load_backbone(path: str | Path) -> tuple[nn.Module, dict[str, Any]]:
    """The backbone that `save_backbone` wrote, in eval mode on the CPU, and its manifest."""
    tensors_path, manifest_path = _paths(path)
    for file in (tensors_path, manifest_path):
        if not file.exists():
            raise StateError(f"a saved backbone is a .safetensors and a .json file, {file} is missing: check the path")
    try:
        manifest: dict[str, Any] = dict(json.loads(manifest_path.read_text()))
    except (TypeError, ValueError) as error:
        raise StateError(
            f"the manifest must be a JSON object, {manifest_path} is none ({error}): save the backbone again"
        ) from error
    found = {key: manifest.get(key) for key in _MANIFEST}
    if found != _MANIFEST:
        raise StateError(
            f"the manifest must say {_MANIFEST}, {manifest_path} says {found}: use a file of save_backbone"
        )
    if manifest["sha256"] != _sha256(tensors_path):
        raise StateError(f"the tensors must be those of the manifest, {tensors_path} was changed: save it again")
    module = build_backbone(manifest["backbone"], stem=manifest["stem"])
    _load_strictly(module, load_file(tensors_path), str(tensors_path))
    return module.eval(), manifest


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

    torchvision   .pth, a state dict for `torchvision.models.<name>()`: every tensor but those of `fc`
    timm          .safetensors, a state dict for `timm.create_model(name, num_classes=0)`
    detectron2    .pth, {"model": ...} with the full names of an R50-C4 detector: every tensor of its stem and res2..5
    """
    destination = Path(destination)
    if to not in get_args(Format):
        raise ConfigError(f"export goes to one of {', '.join(get_args(Format))}, got {to!r}: choose one of these")
    if destination.suffix != _SUFFIXES[to]:
        raise ConfigError(f"a file for {to} ends in {_SUFFIXES[to]}, got {destination.name!r}: rename it")
    module, manifest = load_backbone(source)
    name = str(manifest["backbone"])
    _check_exportable(module, name, str(manifest["stem"]), to)
    destination.parent.mkdir(parents=True, exist_ok=True)
    images = _test_images(module)
    with torch.no_grad():
        expected = module(images)
    partial = destination.with_name(f".{destination.name}.partial")
    _CONVERTERS[to](module.state_dict(), partial)
    difference = (_READERS[to](name, partial, images) - expected).abs().max().item()
    if not difference <= _TOLERANCE * expected.abs().max().item():
        raise StateError(f"exported outputs must equal ours, {to} differs by {difference:.3g}: please report this")
    os.replace(partial, destination)  # only a file that was read back and compared gets the name
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
    _load_strictly(network, torch.load(path, weights_only=True), f"torchvision's {name}", missing=_CLASSIFIER)
    network.fc = nn.Identity()
    features: Tensor = network(images)
    return features


@torch.no_grad()
def _timm_features(name: str, path: Path, images: Tensor) -> Tensor:
    import timm

    network = timm.create_model(name, num_classes=0).eval()
    _load_strictly(network, load_file(path), f"timm's {name}")
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


def _load_strictly(
    module: nn.Module, state: Mapping[str, Tensor], where: str, *, missing: Set[str] = frozenset()
) -> None:
    expected = set(module.state_dict()) - missing
    lacking, unknown = sorted(expected - set(state)), sorted(set(state) - expected)
    if lacking or unknown:
        raise StateError(
            f"all {len(expected)} tensors must match by name, {where} lacks {lacking[:3]} and has unknown "
            f"{unknown[:3]} ({len(lacking)} and {len(unknown)} in all): use the backbone and stem it was saved with"
        )
    module.load_state_dict(state, strict=not missing)


def _paths(path: str | Path) -> tuple[Path, Path]:
    base = Path(path)
    base = base.with_suffix("") if base.suffix in (".safetensors", ".json") else base
    return base.with_name(f"{base.name}.safetensors"), base.with_name(f"{base.name}.json")


def _write(path: Path, write: Callable[[Path], Any]) -> None:
    """Write under a temporary name, then rename."""
    partial = path.with_name(f".{path.name}.partial")
    write(partial)
    os.replace(partial, path)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
