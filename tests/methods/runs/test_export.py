"""Backbones on disk: round trips, refusals, and other libraries' networks that compute the same."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from sts_core import CheckpointError, ConfigError, StateError
from sts_methods import build_backbone, export, load_backbone, save_backbone
from sts_methods.networks.backbones import Stem
from sts_methods.networks.batch_norm import use_cross_rank_batch_norm
from sts_methods.runs.detectron2 import detectron2_features, detectron2_name


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def with_statistics(network: nn.Module) -> nn.Module:
    """Buffers other than zero and one, so that a forgotten one shows."""
    draw = torch.Generator().manual_seed(1)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.running_mean, module.running_var, module.weight.data, module.bias.data):
                assert tensor is not None
                tensor.copy_(torch.rand(tensor.shape, generator=draw) + 0.5)
    return network


def saved(folder: Path, name: str, stem: Stem = "imagenet") -> tuple[Path, nn.Module]:
    network = with_statistics(build_backbone(name, stem=stem)).eval()
    path = folder / "teacher"
    return save_backbone(path, network, backbone=name, stem=stem, network="teacher", method="byol", step=12), network


def test_a_backbone_survives_the_disk_with_its_manifest(tmp_path: Path) -> None:
    path, network = saved(tmp_path, "wrn_10_1", "cifar")
    restored, manifest = load_backbone(path)
    images = normal(2, 3, 16, 16)
    assert torch.equal(restored(images), network(images))
    assert not restored.training
    expected = {"format": "sts-backbone", "version": 1, "backbone": "wrn_10_1", "stem": "cifar", "network": "teacher"}
    expected |= {"method": "byol", "step": 12, "num_features": 64, "tensors": len(network.state_dict())}
    assert expected.items() <= manifest.items()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["teacher.json", "teacher.safetensors"]


def test_saved_and_exported_tensors_may_be_read_by_whom_the_umask_lets(tmp_path: Path) -> None:
    path, _ = saved(tmp_path, "resnet10t")
    export(path, tmp_path / "resnet10t.safetensors", to="timm")
    (tmp_path / "usual").touch()
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {(tmp_path / "usual").stat().st_mode & 0o644}


def test_the_path_may_name_either_file_or_neither(tmp_path: Path) -> None:
    saved(tmp_path, "wrn_10_1", "cifar")
    for name in ("teacher", "teacher.json", "teacher.safetensors"):
        assert load_backbone(tmp_path / name)[1]["step"] == 12


def test_a_backbone_trained_across_ranks_in_channels_last_saves_like_any_other(tmp_path: Path) -> None:
    network = use_cross_rank_batch_norm(build_backbone("wrn_10_1", stem="cifar"))
    network = network.to(memory_format=torch.channels_last).eval()
    save_backbone(tmp_path / "s", network, backbone="wrn_10_1", stem="cifar", network="student", method="byol", step=1)
    restored, _ = load_backbone(tmp_path / "s")
    torch.testing.assert_close(restored(normal(2, 3, 16, 16)), network(normal(2, 3, 16, 16)))


def test_changed_tensors_a_foreign_manifest_and_missing_files_are_refused(tmp_path: Path) -> None:
    path, _ = saved(tmp_path, "wrn_10_1", "cifar")
    manifest_path = path.with_suffix(".json")
    manifest = json.loads(manifest_path.read_text())
    tensors = load_file(path)
    save_file({**tensors, "conv.weight": tensors["conv.weight"] + 1}, path)
    with pytest.raises(StateError, match="was changed"):
        load_backbone(path)
    manifest_path.write_text(json.dumps({**manifest, "version": 2}))
    with pytest.raises(StateError, match="manifest must say"):
        load_backbone(path)
    for text in (json.dumps(manifest)[:100], "[1]", ""):
        manifest_path.write_text(text)
        with pytest.raises(StateError, match="must be a JSON object"):
            load_backbone(path)
    with pytest.raises(StateError, match=r"nowhere\.safetensors is missing"):
        load_backbone(tmp_path / "nowhere")


def test_a_manifest_with_another_backbone_is_refused_with_counts(tmp_path: Path) -> None:
    path, _ = saved(tmp_path, "wrn_10_1", "cifar")
    manifest_path = path.with_suffix(".json")
    manifest = json.loads(manifest_path.read_text())
    manifest_path.write_text(json.dumps({**manifest, "backbone": "wrn_16_1"}))
    with pytest.raises(CheckpointError, match=r"all \d+ tensors of the network must be in .* missing"):
        load_backbone(path)


@pytest.mark.slow
def test_torchvision_computes_the_same_from_an_exported_resnet(tmp_path: Path) -> None:
    import torchvision

    path, network = saved(tmp_path, "resnet18")
    report = export(path, tmp_path / "out" / "resnet18.pth", to="torchvision")
    theirs = torchvision.models.resnet18().eval()
    missing = theirs.load_state_dict(torch.load(report.path, weights_only=True), strict=False)
    assert missing.missing_keys == ["fc.weight", "fc.bias"]
    assert missing.unexpected_keys == []
    theirs.fc = nn.Identity()
    torch.testing.assert_close(theirs(normal(2, 3, 64, 64)), network(normal(2, 3, 64, 64)))
    assert report.num_tensors == 120
    assert report.max_difference < 1e-4


def test_timm_computes_the_same_from_an_exported_resnet(tmp_path: Path) -> None:
    import timm

    path, network = saved(tmp_path, "resnet10t")
    report = export(path, tmp_path / "resnet10t.safetensors", to="timm")
    theirs = timm.create_model("resnet10t", num_classes=0, checkpoint_path=str(report.path)).eval()
    torch.testing.assert_close(theirs(normal(2, 3, 64, 64)), network(normal(2, 3, 64, 64)))
    assert report.num_tensors == len(network.state_dict())


@pytest.mark.slow
def test_detectron2_names_cover_resnet50_and_compute_the_same(tmp_path: Path) -> None:
    path, network = saved(tmp_path, "resnet50")
    report = export(path, tmp_path / "resnet50.pth", to="detectron2")
    content = torch.load(report.path, weights_only=True)
    assert set(content) == {"model"}
    names = set(content["model"])
    assert report.num_tensors == len(names) == 318
    assert {"backbone.stem.conv1.norm.running_mean", "backbone.res4.5.conv3.weight"} <= names
    assert {"backbone.res2.0.shortcut.norm.bias", "roi_heads.res5.2.conv2.norm.num_batches_tracked"} <= names
    assert {name.split(".")[0] + "." + name.split(".")[1] for name in names} == {
        "backbone.stem",
        *(f"backbone.res{i}" for i in (2, 3, 4)),
        "roi_heads.res5",
    }
    images = normal(1, 3, 75, 101)  # odd sizes tell strides and paddings apart
    torch.testing.assert_close(detectron2_features(content["model"], images), network(images), rtol=1e-4, atol=1e-4)


def test_the_detectron2_check_notices_exchanged_tensors() -> None:
    network = with_statistics(build_backbone("resnet18")).eval()
    state = {detectron2_name(name): tensor for name, tensor in network.state_dict().items()}
    first, second = "backbone.res2.0.conv1.weight", "backbone.res2.0.conv2.weight"
    images = normal(1, 3, 64, 64)
    torch.testing.assert_close(detectron2_features(state, images), network(images), rtol=1e-4, atol=1e-4)
    state[first], state[second] = state[second], state[first]
    assert not torch.allclose(detectron2_features(state, images), network(images), rtol=1e-2)


@pytest.mark.parametrize(
    ("name", "stem", "to", "file", "message"),
    [
        ("wrn_10_1", "cifar", "timm", "a.safetensors", "no network with the CIFAR stem"),
        ("resnet10t", "imagenet", "torchvision", "a.pth", "takes the ResNets of torchvision"),
        ("resnet10t", "imagenet", "detectron2", "a.pth", "takes the ResNets of torchvision"),
        ("resnet10t", "imagenet", "timm", "a.pth", r"ends in \.safetensors"),
        ("resnet10t", "imagenet", "onnx", "a.onnx", "one of torchvision, timm, detectron2"),
    ],
)
def test_what_another_library_cannot_hold_is_refused(
    tmp_path: Path, name: str, stem: Stem, to: str, file: str, message: str
) -> None:
    path, _ = saved(tmp_path, name, stem)
    with pytest.raises(ConfigError, match=message):
        export(path, tmp_path / file, to=to)  # type: ignore[arg-type]
    assert not (tmp_path / file).exists()
