"""A backbone as a folder in the format of the Hugging Face hub, from which timm builds it again, to the bit.

config.json         the architecture, and how images are prepared for it
model.safetensors   the tensors
README.md           the model card
"""

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sts_core import ConfigError, StateError
from sts_core.weights import load_strictly
from sts_methods.runs.backbone_files import load_backbone

CROP = 224 / 256  # as images are evaluated here, and by MoCo's main_lincls.py
CARD, FILES = "README.md", ("config.json", "model.safetensors")


def export_to_hub_folder(
    source: str | Path,
    destination: str | Path,
    *,
    card: str | None = None,
    more: Mapping[str, str] | None = None,
    images: Mapping[str, Any] | None = None,
) -> int:
    """Write a backbone as a hub folder, build it from there and compare features; returns the number of tensors.

    `source` is a backbone that `fit` or `save_backbone` wrote, `destination` the folder, where an earlier export is
    replaced.
    `card` is the text of its README.md and `more` holds further text files by name. A backbone of an earlier version
    lacks image_size, mean and std of its training's images: `images` has them.

    >>> network = build_backbone("resnet18")
    >>> saved = {"backbone": "resnet18", "stem": "imagenet", "network": "teacher", "method": "byol", "step": 0}
    >>> _ = save_backbone("teacher", network, smoothing={}, image_size=64, mean=[0.5] * 3, std=[0.5] * 3, **saved)
    >>> export_to_hub_folder("teacher", "photos-resnet18")
    120
    """
    import timm  # takes seconds: those who export nothing do not wait

    destination = Path(destination)
    texts = {**(more or {}), **({} if card is None else {CARD: card})}
    _check_destination(destination, {*FILES, CARD, *texts})
    module, manifest = load_backbone(source)
    network = _timm_network(module, manifest, images)
    destination.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", dir=destination.parent))
    try:
        timm.models.save_for_hf(network, str(partial), safe_serialization=True)
        for name, text in texts.items():
            (partial / name).write_text(text, encoding="utf-8")
        _compare(partial, module, _preparation(manifest, images))
        _move(partial, destination)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return len(module.state_dict())


def _check_destination(destination: Path, written: set[str]) -> None:
    if destination.exists() and not destination.is_dir():
        raise ConfigError(
            f"a network for the hub is written into a folder, {destination} is a file: name another place"
        )
    others = sorted(path.name for path in destination.glob("*") if path.name not in written)
    if others:
        raise ConfigError(
            f"{destination} must be a new folder or an earlier export, it holds {others[0]}: name another"
        )


def _timm_network(module: nn.Module, manifest: Mapping[str, Any], images: Mapping[str, Any] | None) -> nn.Module:
    """timm's own network with the backbone's weights, which knows how images were prepared for them."""
    import timm

    name, stem = str(manifest["backbone"]), manifest["stem"]
    if stem != "imagenet" or not timm.is_model(name):
        raise ConfigError(
            f"the hub's format names a network of timm's, got {name} with stem=\"{stem}\", which timm has not: use "
            "save_backbone, whose files sts-eval reads"
        )
    dynamic = {"dynamic_img_size": True} if timm.models.is_model_in_modules(name, ["vision_transformer"]) else {}
    network: nn.Module = timm.create_model(name, num_classes=0, **dynamic)
    load_strictly(network, module.state_dict(), origin="the backbone")
    usual: dict[str, Any] = getattr(network, "pretrained_cfg")  # noqa: B009 - the type checker sees Tensor | Module
    setattr(network, "pretrained_cfg", {**usual, **_preparation(manifest, images)})  # noqa: B010
    return network.eval()


def _preparation(manifest: Mapping[str, Any], images: Mapping[str, Any] | None) -> dict[str, Any]:
    """How images are prepared when the backbone is evaluated, in timm's words."""
    known = {**(images or {}), **manifest}
    if lacking := [name for name in ("image_size", "mean", "std") if name not in known]:
        raise ConfigError(f"a backbone's {lacking[0]} must be known, its manifest lacks it: pass images=")
    size = (3, known["image_size"], known["image_size"])
    colours = {"mean": tuple(known["mean"]), "std": tuple(known["std"])}
    resizing = {"input_size": size, "crop_pct": CROP, "interpolation": "bilinear", "crop_mode": "center"}
    # What belongs to the weights that timm has for this architecture, and not to these.
    others = dict.fromkeys(
        ("test_input_size", "test_crop_pct", "pool_size", "tag", "license", "paper_ids", "origin_url")
    )
    return {**others, **resizing, **colours, "num_classes": 0}


@torch.no_grad()
def _compare(folder: Path, module: nn.Module, prepared: Mapping[str, Any]) -> None:
    """Raise unless timm builds from the folder what it was made of."""
    import timm

    found: nn.Module = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    images = torch.randn((2, *prepared["input_size"]), generator=torch.Generator().manual_seed(0))
    if not torch.equal(found(images), module.eval()(images)):
        raise StateError(
            "exported features must equal ours to the bit, timm's from the folder do not: please report this"
        )
    told = timm.data.resolve_model_data_config(found)
    wrong = [name for name in ("input_size", "mean", "std") if tuple(told[name]) != tuple(prepared[name])]
    if wrong:
        raise StateError(f"timm must prepare images as they were in training, {wrong[0]} differs: please report this")


def _move(partial: Path, destination: Path) -> None:
    """The files into their place, of which the network's config comes last: without it there is none."""
    destination.mkdir(exist_ok=True)
    for file in sorted(partial.iterdir(), key=lambda file: file.name == FILES[0]):
        os.replace(file, destination / file.name)
