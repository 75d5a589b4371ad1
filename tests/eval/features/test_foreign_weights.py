"""Files of the layouts in which other people publish weights, with tiny networks inside."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from sts_eval import CheckpointError, load_source

State = dict[str, Tensor]


def weights(shift: int) -> State:
    module: nn.Module = timm.create_model("resnet10t", num_classes=0)
    return {name: value + shift if value.is_floating_point() else value for name, value in module.state_dict().items()}


def behind(prefix: str, state: State) -> State:
    return {prefix + name: value for name, value in state.items()}


def with_head(prefix: str, state: State) -> State:
    return behind(prefix, state | {"fc.0.weight": torch.zeros(4, 4)})


LAYOUTS: dict[str, Callable[[State, State], Any]] = {
    "plain": lambda own, other: own,
    "data parallel": lambda own, other: {"state_dict": behind("module.", own)},
    "moco": lambda own, other: {
        "epoch": 200,
        "arch": "resnet50",
        "state_dict": with_head("module.encoder_k.", other)
        | with_head("module.encoder_q.", own)
        | {"module.queue": torch.zeros(2, 8)},
        "optimizer": {"state": {0: {"momentum_buffer": torch.zeros(3)}}},
    },
    "simsiam": lambda own, other: {
        "state_dict": with_head("module.encoder.", own) | {"module.predictor.0.weight": torch.zeros(2, 2)}
    },
    "dino": lambda own, other: {
        "student": with_head("module.backbone.", other) | {"module.head.mlp.0.weight": torch.zeros(2)},
        "teacher": behind("backbone.", own) | {"head.mlp.0.weight": torch.zeros(2)},
        "args": argparse.Namespace(arch="vit_small"),
    },
    "dino, parallel": lambda own, other: {
        "student": behind("module.backbone.", other),
        "teacher": behind("module.backbone.", own),
    },
    "byol": lambda own, other: {
        "target_network_state_dict": behind("encoder.", other),
        "online_network_state_dict": behind("encoder.", own),
    },
    "byol, one state": lambda own, other: behind("target_encoder.net.", other) | behind("online_encoder.net.", own),
    "vicreg": lambda own, other: {
        "model": behind("module.backbone.", own) | {"module.projector.0.weight": torch.zeros(2, 2)}
    },
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_published_weights_are_found_by_their_names(layout: str, tmp_path: Path) -> None:
    file, own = tmp_path / "checkpoint.pth", weights(1)
    torch.save(LAYOUTS[layout](own, weights(2)), file)
    loaded = load_source(file, backbone="resnet10t")
    assert all(torch.equal(value, own[name]) for name, value in loaded.module.state_dict().items())
    assert loaded.manifest["backbone"] == "resnet10t"


@pytest.mark.parametrize("prefix", ["module.encoder_k", "module.encoder_k.", "state_dict.module.encoder_k."])
def test_a_prefix_names_another_network_of_the_file(prefix: str, tmp_path: Path) -> None:
    file, other = tmp_path / "checkpoint.pth.tar", weights(2)
    torch.save(LAYOUTS["moco"](weights(1), other), file)
    module = timm.create_model("resnet10t", num_classes=0)
    assert load_source(file, backbone=module, prefix=prefix).manifest["prefix"] == "state_dict.module.encoder_k."
    assert all(torch.equal(value, other[name]) for name, value in module.state_dict().items())


def test_weights_that_leave_a_tensor_of_the_network_unmatched_are_refused(tmp_path: Path) -> None:
    file, own = tmp_path / "checkpoint.pth", weights(1)
    del own["layer4.0.conv2.weight"]
    torch.save({"state_dict": behind("module.encoder_q.", own)}, file)
    module = timm.create_model("resnet10t", num_classes=0)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(CheckpointError, match=r"encoder_q\.' 1 of \d+ are not \(layer4\.0\.conv2\.weight\)"):
        load_source(file, backbone=module)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    with pytest.raises(CheckpointError, match="none is called"):
        load_source(file, backbone="vit_tiny_patch16_224")
    with pytest.raises(CheckpointError, match=r"behind 'encoder_x\.'"):
        load_source(file, backbone="resnet10t", prefix="encoder_x")


def test_two_networks_of_which_neither_is_known_to_be_evaluated_need_a_prefix(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.pth"
    torch.save(behind("left.", weights(1)) | behind("right.", weights(2)), file)
    with pytest.raises(CheckpointError, match=r"2 times, behind left\., right\.: name one with prefix="):
        load_source(file, backbone="resnet10t")


class Code:
    """Something that only unpickling could make."""


def test_a_file_that_holds_code_is_not_unpickled(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.pth"
    torch.save({"state_dict": weights(1), "hook": Code()}, file)
    with pytest.raises(CheckpointError, match="readable file of tensors"):
        load_source(file, backbone="resnet10t")
