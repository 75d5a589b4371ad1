"""Weights in files: the layouts in which other people publish them, with tiny networks inside."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sts_core.errors import CheckpointError
from sts_core.weights import digest_of, load_found_, load_strictly, read_weights

State = dict[str, Tensor]


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))


def weights(shift: int) -> State:
    return {name: torch.full_like(value, shift) for name, value in network().state_dict().items()}


def behind(prefix: str, state: State) -> State:
    return {prefix + name: value for name, value in state.items()}


def with_head(prefix: str, state: State) -> State:
    return behind(prefix, state | {"head.weight": torch.zeros(4, 4)})


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
    "moco v3": lambda own, other: {
        "state_dict": behind("module.momentum_encoder.", other)
        | with_head("module.base_encoder.", own)
        | {"module.predictor.0.weight": torch.zeros(2, 2)}
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
    file, own, module = tmp_path / "checkpoint.pth", weights(1), network()
    torch.save(LAYOUTS[layout](own, weights(2)), file)
    load_found_(module, file)
    assert all(torch.equal(value, own[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize("prefix", ["module.encoder_k", "module.encoder_k.", "state_dict.module.encoder_k."])
def test_a_prefix_names_another_network_of_the_file(prefix: str, tmp_path: Path) -> None:
    file, other, module = tmp_path / "checkpoint.pth.tar", weights(2), network()
    torch.save(LAYOUTS["moco"](weights(1), other), file)
    assert load_found_(module, file, prefix=prefix) == "state_dict.module.encoder_k."
    assert all(torch.equal(value, other[name]) for name, value in module.state_dict().items())


def test_weights_that_leave_a_tensor_of_the_network_unmatched_are_refused(tmp_path: Path) -> None:
    file, own, module = tmp_path / "checkpoint.pth", weights(1), network()
    del own["3.weight"]
    torch.save({"state_dict": behind("module.encoder_q.", own)}, file)
    before = digest_of(module)
    with pytest.raises(CheckpointError, match=r"encoder_q\.' 1 of 9 are not \(3\.weight\)"):
        load_found_(module, file)
    with pytest.raises(CheckpointError, match="none is called"):
        load_found_(nn.ModuleDict({"conv": nn.Linear(2, 2)}), file)
    with pytest.raises(CheckpointError, match=r"behind 'encoder_x\.'"):
        load_found_(module, file, prefix="encoder_x")
    assert digest_of(module) == before


def test_two_networks_of_which_neither_is_known_to_be_evaluated_need_a_prefix(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.pth"
    torch.save(behind("left.", weights(1)) | behind("right.", weights(2)), file)
    with pytest.raises(CheckpointError, match=r"2 times, behind left\., right\.: name one as prefix"):
        load_found_(network(), file)


class Code:
    """Something that only unpickling could make."""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"state_dict": {}, "hook": Code()}, "holds more than tensors and plain values, and was not opened"),
        ([torch.zeros(1)], "must hold a dict of tensors or of sections, it holds a list"),
    ],
)
def test_a_file_that_holds_code_or_something_else_is_not_opened(content: Any, message: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "it.pth")
    with pytest.raises(CheckpointError, match=message) as caught:
        read_weights(tmp_path / "it.pth")
    assert "\n" not in str(caught.value)


def test_a_partial_match_is_refused_lists_what_differs_and_changes_nothing() -> None:
    module = nn.Linear(3, 2)
    before = digest_of(module)
    with pytest.raises(CheckpointError, match=r"1 missing \(bias\)"):
        load_strictly(module, {"weight": torch.zeros(2, 3)})
    prefixed = {f"encoder_q.{name}": value for name, value in module.state_dict().items()}
    with pytest.raises(CheckpointError, match=r"2 missing .* 2 unknown \(encoder_q.weight, encoder_q.bias\)"):
        load_strictly(module, prefixed)
    with pytest.raises(CheckpointError, match=r"1 of another shape \(weight \(3, 2\) for \(2, 3\)\)"):
        load_strictly(module, {"weight": torch.zeros(3, 2), "bias": torch.zeros(2)})
    assert digest_of(module) == before
    load_strictly(module, {"weight": torch.zeros(2, 3)}, missing={"bias"})
    assert module.weight.abs().max() == 0


def test_a_digest_knows_every_name_shape_type_and_bit() -> None:
    module = nn.Linear(4, 1)
    digests = {digest_of(module)}
    with torch.no_grad():
        module.weight[0, 3] = torch.nextafter(module.weight[0, 3], torch.tensor(9.0))
    others: list[nn.Module] = [module, nn.Sequential(module), nn.Linear(4, 1).bfloat16()]
    flat = nn.Linear(2, 2)
    with torch.no_grad():
        flat.weight.copy_(module.weight.view(2, 2))
    digests |= {digest_of(one) for one in (*others, flat)}
    assert len(digests) == 5
