"""Methods by name: construction from config and seed, state, and independence of torch's generator."""

import dataclasses

import pytest
import torch

from sts_core import ConfigError
from sts_methods import (
    METHODS,
    ByolConfig,
    DinoConfig,
    FixMatchConfig,
    MeanTeacherConfig,
    MethodConfig,
    MoCoConfig,
    MoCoV3Config,
    build_method,
)
from sts_methods.methods.registry import method_name

CONFIGS: dict[str, MethodConfig] = {
    "byol": ByolConfig(backbone="wrn_10_1", stem="cifar"),
    "moco": MoCoConfig(backbone="wrn_10_1", stem="cifar", queue_size=16),
    "moco_v3": MoCoV3Config(backbone="wrn_10_1", stem="cifar", hidden_dim=16),
    "fixmatch": FixMatchConfig(backbone="wrn_10_1", num_classes=3),
    "mean_teacher": MeanTeacherConfig(backbone="wrn_10_1", num_classes=3),
    "dino": DinoConfig(backbone="wrn_10_1", stem="cifar", num_prototypes=16),
}


@pytest.mark.parametrize("name", METHODS)
def test_weights_depend_on_config_and_seed_alone(name: str) -> None:
    state = build_method(CONFIGS[name], seed=7).state_dict()
    torch.manual_seed(123)
    untouched = torch.get_rng_state()
    again = build_method(CONFIGS[name], seed=7).state_dict()
    assert torch.equal(torch.get_rng_state(), untouched)
    other = build_method(CONFIGS[name], seed=8).state_dict()
    assert all(torch.equal(tensor, again[key]) for key, tensor in state.items())
    assert not torch.equal(state["student.backbone.conv.weight"], other["student.backbone.conv.weight"])


@pytest.mark.parametrize("name", METHODS)
def test_the_teacher_starts_as_a_full_copy_and_is_separate(name: str) -> None:
    method = build_method(CONFIGS[name], seed=0)
    student, teacher = method.student.state_dict(), method.teacher.state_dict()
    assert teacher.keys() <= student.keys()
    assert all(torch.equal(student[key], tensor) for key, tensor in teacher.items())
    assert all(student[key].data_ptr() != tensor.data_ptr() for key, tensor in teacher.items())
    assert method.backbone("teacher") is not method.backbone("student")
    assert method.backbone("student").state_dict().keys() == method.backbone("teacher").state_dict().keys()


@pytest.mark.parametrize("name", METHODS)
def test_every_config_knows_its_name_and_is_frozen(name: str) -> None:
    assert method_name(CONFIGS[name]) == name
    with pytest.raises(dataclasses.FrozenInstanceError):
        CONFIGS[name].backbone = "resnet18"  # type: ignore[misc]


def test_something_else_than_a_method_config_is_refused() -> None:
    with pytest.raises(ConfigError, match="byol, moco, moco_v3, fixmatch, mean_teacher, dino"):
        build_method("byol", seed=0)  # type: ignore[arg-type]


def test_default_networks_are_those_of_the_papers() -> None:
    assert ByolConfig().backbone == MoCoConfig().backbone == MoCoV3Config().backbone == "resnet50"
    assert FixMatchConfig(num_classes=10).backbone == "wrn_28_2"
    assert DinoConfig().backbone == "vit_small_patch16_224"
