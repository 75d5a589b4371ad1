"""Where a backbone comes from: a module, a checkpoint of ours, a file of anyone's weights, or a timm name.

Weights are matched by name and shape, all of them or not at all. A partial match that is accepted leaves part of the
network at random values, and the evaluation looks like a bad method: the classic mistake, refused here.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from sts_core import CheckpointError, ConfigError
from sts_core.weights import load_found_, load_strictly, pretrained_name, pretrained_network, read_weights
from sts_eval.features.images import CentreCrop

MANIFEST = {"format": "sts-backbone", "version": 1}


@dataclass(frozen=True)
class Backbone:
    """A network from images to pooled features, and where it came from."""

    module: nn.Module
    manifest: Mapping[str, Any] = field(default_factory=dict)
    """What the checkpoint says of itself: backbone, stem, network (teacher or student), method, step."""
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `CentreCrop` that the weights were trained for; a timm network brings its own."""

    def transform(self, **changes: Any) -> CentreCrop:
        """The test's view of an image as this network expects it; any argument of `CentreCrop` can be given."""
        return CentreCrop(**{**self.preprocessing, **changes})


def load_source(
    source: nn.Module | str | Path,
    *,
    build: Callable[..., nn.Module] | None = None,
    network: str | None = None,
    backbone: str | nn.Module | None = None,
    prefix: str | None = None,
) -> Backbone:
    """A backbone from a module, from a checkpoint file (or a run's folder and `network`), or from a timm name.

    `build(name, stem=...)` makes the network that a checkpoint names; without it only timm's networks are known. A
    timm name, `hf-hub:OWNER/NAME` or a folder in the hub's format gives the pretrained network. Weights of other people
    need `backbone`, the network (or its name) that they belong to: its tensors are found in the file, behind `prefix`
    where that is given.
    """
    if isinstance(source, nn.Module):
        return Backbone(source)
    named = pretrained_name(source)
    path = _checkpoint_file(Path(source), network) if named is None else None
    if path is not None and backbone is not None:
        module = (build or timm_backbone)(backbone) if isinstance(backbone, str) else backbone
        name = backbone if isinstance(backbone, str) else type(backbone).__name__
        return Backbone(module, {"backbone": name, "prefix": load_found_(module, path, prefix=prefix)})
    if path is not None:
        return _from_checkpoint(path, build or timm_backbone)
    if named is None and (Path(source).suffix or len(Path(source).parts) > 1):
        raise CheckpointError(f"a checkpoint must be a file, but {source} does not exist: check the path")
    module = timm_backbone(named or str(source), pretrained=True)
    return Backbone(module, {"backbone": str(source), "pretrained": True}, timm_preprocessing(module))


def timm_preprocessing(module: nn.Module) -> dict[str, Any]:
    """Size, resize, interpolation, mean and deviation with which timm evaluates a network of its own."""
    from timm.data import resolve_model_data_config

    found = resolve_model_data_config(module)
    if found["crop_mode"] != "center":
        raise ConfigError(
            f"the test's view is a centre crop, but this network wants {found['crop_mode']}: crop yourself"
        )
    side = int(found["input_size"][-1])
    colours = {name: tuple(found[name]) for name in ("mean", "std")}  # a config that was read from JSON has lists
    resizing = {"resize": int(side / found["crop_pct"]), "interpolation": found["interpolation"]}
    return {"image_size": side, **resizing, **colours}


def _checkpoint_file(path: Path, network: str | None) -> Path | None:
    if path.is_dir():
        if network not in ("teacher", "student"):
            raise ConfigError(
                f"a run's folder holds a teacher and a student, got network={network!r}: name one of them"
            )
        path = path / f"{network}.safetensors"
        if not path.is_file():
            raise CheckpointError(f"a finished run has a backbone at {path}, but it does not exist: finish the run")
    return path if path.is_file() else None


def timm_backbone(name: str, *, stem: str = "imagenet", pretrained: bool = False) -> nn.Module:
    """A timm network without its classifier; `stem="cifar"` is a 3x3 convolution of stride 1 and no max-pool."""
    import timm

    if pretrained_name(name) is None:
        raise ConfigError(f"{name!r} is no network of timm's: pass a timm name, or build= for networks of your own")
    sizes = {"dynamic_img_size": True} if timm.models.is_model_in_modules(name, ["vision_transformer"]) else {}
    untrained = partial(timm.create_model, num_classes=0)
    module: nn.Module = (pretrained_network if pretrained else untrained)(name, **sizes)
    if stem == "cifar":
        first = getattr(module, "conv1", None)
        if not isinstance(first, nn.Conv2d) or not hasattr(module, "maxpool"):
            raise ConfigError(
                f"the cifar stem replaces the first layers of a ResNet, but {name!r} is none: use imagenet"
            )
        module.conv1 = nn.Conv2d(3, first.out_channels, 3, stride=1, padding=1, bias=False)
        module.maxpool = nn.Identity()
    return module


def _from_checkpoint(path: Path, build: Callable[..., nn.Module]) -> Backbone:
    manifest = read_manifest(path)
    tensors = read_tensors(path)
    if manifest.get("tensors", len(tensors)) != len(tensors):
        counts = f"{manifest['tensors']} tensors, but it holds {len(tensors)}"
        raise CheckpointError(f"{path} must hold the {counts}: save it again")
    if manifest.get("sha256", "") not in ("", hashlib.sha256(path.read_bytes()).hexdigest()):
        raise CheckpointError(
            f"{path} must hold the tensors its manifest was made for, but it was changed: save it again"
        )
    try:
        module = build(str(manifest["backbone"]), stem=str(manifest.get("stem", "imagenet")))
    except ConfigError as error:
        raise CheckpointError(f"{path} cannot be loaded, since {error}") from None
    load_strictly(module, tensors, origin=str(path))
    return Backbone(module, manifest)


def read_manifest(path: Path) -> dict[str, Any]:
    """The JSON beside a backbone file: same name, suffix .json."""
    file = path.with_suffix(".json")
    try:
        manifest = json.loads(file.read_text())
    except FileNotFoundError:
        raise CheckpointError(
            f"a backbone needs its manifest beside it, but {file} does not exist: copy it too, or name the network "
            "of other people's weights with backbone="
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise CheckpointError(
            f"{file} must be the JSON manifest of a backbone, but it is no JSON: save it again"
        ) from None
    if not isinstance(manifest, dict) or any(manifest.get(key) != value for key, value in MANIFEST.items()):
        expected = f"format {MANIFEST['format']!r}, version {MANIFEST['version']}"
        raise CheckpointError(f"{file} must have {expected}, which it has not: export the backbone with this version")
    if "backbone" not in manifest:
        raise CheckpointError(f"{file} must name the backbone, which it does not: save the checkpoint again")
    return manifest


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a .safetensors file, or of a torch file that holds a flat dict of them; no code is unpickled."""
    loaded = read_weights(path)
    if not all(isinstance(value, Tensor) for value in loaded.values()):
        raise CheckpointError(f"{path} must hold a flat dict of tensors, which it does not: save module.state_dict()")
    return loaded
