"""Folders in the hub's format, from which timm builds the same network."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor

from sts_core import ConfigError, StateError
from sts_methods import build_backbone, export_to_hub_folder, save_backbone
from sts_methods.networks.backbones import Stem
from tests.methods.runs.test_export import normal, with_statistics

IMAGES: dict[str, Any] = {"image_size": 64, "mean": (0.4, 0.5, 0.6), "std": (0.1, 0.2, 0.3)}


def saved(folder: Path, name: str, stem: Stem = "imagenet", **details: Any) -> Any:
    network = with_statistics(build_backbone(name, stem=stem)).eval()
    about: dict[str, Any] = {"backbone": name, "stem": stem, "network": "teacher", "method": "byol", "step": 12}
    save_backbone(folder / "teacher", network, **about, **details)
    return network


@torch.no_grad()
def features(network: Any, images: Tensor) -> Tensor:
    return network.eval()(images)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_convnext"])
def test_timm_builds_the_same_network_and_prepares_images_alike(name: str, tmp_path: Path) -> None:
    ours = saved(tmp_path, name, **IMAGES)
    hub = tmp_path / "hub"
    assert export_to_hub_folder(tmp_path / "teacher", hub, card="# A card\n") == len(ours.state_dict())
    assert sorted(file.name for file in hub.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    theirs = timm.create_model(f"local-dir:{hub}", pretrained=True)
    for size in (64, 160):  # that of the training, and another
        assert torch.equal(features(theirs, normal(2, 3, size, size)), features(ours, normal(2, 3, size, size)))
    prepared = timm.data.resolve_model_data_config(theirs)
    assert (tuple(prepared["mean"]), tuple(prepared["std"])) == (IMAGES["mean"], IMAGES["std"])
    assert (prepared["input_size"], prepared["crop_pct"]) == ((3, 64, 64), 0.875)
    config = json.loads((hub / "config.json").read_text())
    assert config["architecture"] == name
    assert "hf_hub_id" not in config["pretrained_cfg"], "timm's own weights are not these"


def test_backbones_of_earlier_versions_are_told_what_their_images_were(tmp_path: Path) -> None:
    saved(tmp_path, "test_resnet")
    with pytest.raises(ConfigError, match="a backbone's image_size must be known"):
        export_to_hub_folder(tmp_path / "teacher", tmp_path / "hub")
    export_to_hub_folder(tmp_path / "teacher", tmp_path / "hub", images=IMAGES)
    assert json.loads((tmp_path / "hub" / "config.json").read_text())["pretrained_cfg"]["mean"] == [0.4, 0.5, 0.6]


def test_an_earlier_export_is_replaced_and_anything_else_is_left_alone(tmp_path: Path) -> None:
    first = saved(tmp_path, "test_resnet", **IMAGES)
    hub = tmp_path / "hub"
    export_to_hub_folder(tmp_path / "teacher", hub)
    with torch.no_grad():
        first.conv1[0].weight.add_(1)
    about: dict[str, Any] = {"backbone": "test_resnet", "stem": "imagenet", "network": "teacher", "method": "byol"}
    save_backbone(tmp_path / "teacher", first, step=13, **about, **IMAGES)
    export_to_hub_folder(tmp_path / "teacher", hub, card="# New\n")
    theirs = timm.create_model(f"local-dir:{hub}", pretrained=True)
    assert torch.equal(features(theirs, normal(1, 3, 64, 64)), features(first, normal(1, 3, 64, 64)))
    (hub / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"must be a new folder or an earlier export, it holds notes\.txt"):
        export_to_hub_folder(tmp_path / "teacher", hub)
    with pytest.raises(ConfigError, match="is a file"):
        export_to_hub_folder(tmp_path / "teacher", hub / "notes.txt")


@pytest.mark.parametrize(("name", "stem"), [("wrn_10_1", "cifar"), ("resnet18", "cifar")])
def test_networks_that_timm_has_not_are_refused(name: str, stem: Stem, tmp_path: Path) -> None:
    saved(tmp_path, name, stem, **IMAGES)
    with pytest.raises(ConfigError, match="which timm has not"):
        export_to_hub_folder(tmp_path / "teacher", tmp_path / "hub")
    assert not (tmp_path / "hub").exists()


def test_a_folder_from_which_timm_builds_something_else_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, "test_resnet", **IMAGES)
    save = timm.models.save_for_hf

    def spoilt(network: Any, folder: str, **options: Any) -> None:
        with torch.no_grad():
            network.conv1[0].weight[0, 0, 0, 0] += 1e-3
        save(network, folder, **options)

    monkeypatch.setattr(timm.models, "save_for_hf", spoilt)
    with pytest.raises(StateError, match="equal ours to the bit"):
        export_to_hub_folder(tmp_path / "teacher", tmp_path / "hub")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["teacher.json", "teacher.safetensors"]
