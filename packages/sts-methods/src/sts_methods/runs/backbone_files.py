"""Backbones on disk: our own format (safetensors and a JSON manifest), and those of other libraries.

teacher.safetensors   the tensors, under the network's own names
teacher.json          {"format": "sts-backbone", "version": 1, "backbone": "resnet50", "stem": "imagenet",
                       "network": "teacher", "method": "byol", "step": 250000, "num_features": 2048,
                       "tensors": 318, "sha256": "..."}
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import nn

from sts_core import Network, StateError
from sts_core.files import replacing, write_atomically
from sts_core.weights import load_strictly
from sts_methods.networks.backbones import Stem, build_backbone, num_features

_MANIFEST = {"format": "sts-backbone", "version": 1}


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
    with replacing(tensors_path) as partial:
        save_file(tensors, partial)
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
    write_atomically(manifest_path, json.dumps(manifest, indent=2) + "\n")
    return tensors_path


def load_backbone(path: str | Path) -> tuple[nn.Module, dict[str, Any]]:
    """The backbone that `save_backbone` wrote, in eval mode on the CPU, and its manifest."""
    manifest, tensors_path = verify_backbone(path), _paths(path)[0]
    module = build_backbone(manifest["backbone"], stem=manifest["stem"])
    load_strictly(module, load_file(tensors_path), origin=str(tensors_path))
    return module.eval(), manifest


def verify_backbone(path: str | Path) -> dict[str, Any]:
    """The manifest of a backbone that `save_backbone` wrote, after comparing the hash of its tensors with it."""
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
    if manifest.get("sha256") != _sha256(tensors_path):
        raise StateError(f"the tensors must be those of the manifest, {tensors_path} was changed: save it again")
    return manifest


def _paths(path: str | Path) -> tuple[Path, Path]:
    base = Path(path)
    base = base.with_suffix("") if base.suffix in (".safetensors", ".json") else base
    return base.with_name(f"{base.name}.safetensors"), base.with_name(f"{base.name}.json")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
