import json

import pytest
import torch
from safetensors.torch import save_file
from timm.models._hub import save_for_hf
from torch import nn

from sts_core.errors import ConfigError
from sts_eval import CheckpointError, load_source
from sts_eval.features.backbone_source import timm_backbone

MANIFEST = {
    "format": "sts-backbone",
    "version": 1,
    "backbone": "resnet10t",
    "stem": "imagenet",
    "network": "teacher",
    "method": "byol",
    "step": 12,
}


@pytest.fixture(scope="module")
def network():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return timm_backbone("resnet10t").eval()


def save(folder, tensors, **changes):
    path = folder / "teacher.safetensors"
    save_file(tensors, path)
    path.with_suffix(".json").write_text(json.dumps(MANIFEST | {"tensors": len(tensors)} | changes))
    return path


def test_a_module_is_taken_as_it_is():
    module = nn.Linear(1, 1)
    assert load_source(module).module is module


def test_a_checkpoint_gives_the_same_features(tmp_path, network):
    path = save(tmp_path, network.state_dict())
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    loaded = load_source(path)
    with torch.no_grad():
        assert torch.equal(loaded.module.eval()(images), network(images))
    assert (loaded.manifest["network"], loaded.manifest["step"]) == ("teacher", 12)
    assert load_source(tmp_path, network="teacher").manifest == loaded.manifest


def test_the_cifar_stem_keeps_the_resolution():
    plain, small = timm_backbone("resnet18"), timm_backbone("resnet18", stem="cifar")
    images = torch.zeros(1, 3, 32, 32)
    assert plain.eval().forward_features(images).shape[-1] == 1
    assert small.eval().forward_features(images).shape[-1] == 4
    assert plain.state_dict().keys() == small.state_dict().keys()


def test_networks_that_timm_does_not_know_are_built_by_the_caller(tmp_path):
    module = nn.Linear(3, 2)
    path = save(tmp_path, module.state_dict(), backbone="mine", stem="cifar")
    with pytest.raises(CheckpointError, match="build="):
        load_source(path)
    asked = []

    def build(name, *, stem):
        asked.append((name, stem))
        return nn.Linear(3, 2)

    assert torch.equal(load_source(path, build=build).module.weight, module.weight)
    assert asked == [("mine", "cifar")]


@pytest.mark.parametrize(
    ("name", "stem"),
    [("resnet10t", "imagenet"), ("resnet18", "cifar"), ("vit_tiny_patch16_224", "imagenet"), ("wrn_10_1", "cifar")],
)
def test_a_backbone_that_sts_methods_saved_gives_its_features(tmp_path, name, stem):
    sts_methods = pytest.importorskip("sts_methods", reason="the two packages can be installed alone")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        saved = sts_methods.build_backbone(name, stem=stem).eval()
    sts_methods.save_backbone(
        tmp_path / "teacher", saved, backbone=name, stem=stem, network="teacher", method="byol", step=3
    )
    build = sts_methods.build_backbone if name.startswith("wrn") else None
    loaded = load_source(tmp_path, network="teacher", build=build).module.eval()
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(loaded(images), saved(images))


def test_a_partial_match_is_refused_lists_what_is_missing_and_changes_nothing(tmp_path, network):
    tensors = {k: v for k, v in network.state_dict().items() if not k.startswith("layer4.0.conv1")}
    with pytest.raises(CheckpointError) as caught:
        load_source(save(tmp_path, tensors))
    assert "1 missing (layer4.0.conv1.weight)" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.with_suffix(".json").unlink(), "needs its manifest"),
        (lambda path: path.with_suffix(".json").write_text("{"), "no JSON"),
        (lambda path: path.with_suffix(".json").write_text('{"format": "other"}'), "must have format"),
        (lambda path: path.write_bytes(path.read_bytes()[:100]), "cannot be read as a checkpoint"),
        (lambda path: path.with_suffix(".json").write_text(json.dumps(MANIFEST | {"tensors": 3})), "3 tensors"),
        (lambda path: path.with_suffix(".json").write_text(json.dumps(MANIFEST | {"sha256": "0"})), "was changed"),
    ],
)
def test_damaged_checkpoints_are_one_sentence(tmp_path, damage, message):
    path = save(tmp_path, nn.Linear(2, 2).state_dict())
    damage(path)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_source(path)
    assert "\n" not in str(caught.value)


def test_unknown_names_and_absent_files_are_told_apart(tmp_path):
    with pytest.raises(CheckpointError, match="does not exist"):
        load_source(tmp_path / "nothing.safetensors")
    with pytest.raises(ConfigError, match="timm"):
        load_source("resnet5000")
    with pytest.raises(ConfigError, match="name one of them"):
        load_source(tmp_path)
    with pytest.raises(CheckpointError, match="finish the run"):
        load_source(tmp_path, network="student")


def test_pretrained_weights_out_of_reach_are_one_sentence(monkeypatch, caplog):
    import timm
    from huggingface_hub.errors import LocalEntryNotFoundError
    from huggingface_hub.utils import _http

    def offline(*arguments, **keywords):
        _http.logger.warning("Retrying in 8s [Retry 5/5].")
        raise LocalEntryNotFoundError("Cannot find the file in the local cache. Try again.\nCheck your connection.")

    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(CheckpointError, match=r"'resnet18' could not be had \(Cannot .* cache\): pass a") as caught:
        load_source("resnet18")
    assert "\n" not in str(caught.value)
    assert caplog.messages == []


@pytest.mark.parametrize("name", ["test_resnet.r160_in1k", "hf-hub:somebody/photos", "a folder"])
def test_pretrained_networks_come_by_their_tag_from_the_hub_and_from_a_folder(name, tmp_path, monkeypatch):
    network = timm_backbone("test_resnet").eval()
    save_for_hf(network, str(tmp_path), safe_serialization=True)
    monkeypatch.setattr("timm.models._hub.hf_hub_download", lambda repo_id, filename, **options: tmp_path / filename)
    loaded = load_source(tmp_path if name == "a folder" else name)
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(loaded.module.eval()(images), network(images))
    assert loaded.preprocessing["mean"] == (0.5, 0.5, 0.5)


def test_weights_of_other_people_are_loaded_into_the_network_that_they_are_said_to_belong_to(tmp_path, network):
    file = tmp_path / "moco.pth.tar"
    torch.save({"state_dict": {f"module.encoder_q.{n}": v for n, v in network.state_dict().items()}}, file)
    loaded = load_source(file, backbone="resnet10t")
    assert loaded.manifest == {"backbone": "resnet10t", "prefix": "state_dict.module.encoder_q."}
    assert all(torch.equal(value, network.state_dict()[n]) for n, value in loaded.module.state_dict().items())
    with pytest.raises(CheckpointError, match="none is called"):
        load_source(file, backbone="vit_tiny_patch16_224")
