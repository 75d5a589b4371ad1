"""Residual blocks that start as the identity, as in DeepMind's BYOL."""

import pytest
from torch import nn

from sts_core.errors import ConfigError
from sts_methods import ByolConfig, build_method, recipes
from sts_methods.networks.backbones import build_backbone


def last_norms(network: nn.Module) -> list[float]:
    return [
        float(block.get_submodule(name).weight.detach().abs().max())  # type: ignore[operator,union-attr]
        for block in network.modules()
        for name in ("bn3" if hasattr(block, "bn3") else "bn2",)
        if hasattr(block, "conv2") and hasattr(block, "drop_path")
    ]


def test_the_last_norm_of_each_block_starts_at_zero_where_it_is_asked_for() -> None:
    for asked in (False, True):
        method = build_method(
            ByolConfig(backbone="resnet18", hidden_dim=8, projection_dim=4, zero_init_last=asked), seed=0
        )
        for network in ("student", "teacher"):
            assert last_norms(method.backbone(network)) == [0.0 if asked else 1.0] * 8  # type: ignore[arg-type]


def test_only_deepminds_recipe_asks_for_it() -> None:
    asked = {v: recipes.byol_imagenet(v).method.zero_init_last for v in ("code", "paper", "deepmind")}  # type: ignore
    assert asked == {"code": False, "paper": False, "deepmind": True}


@pytest.mark.parametrize(("name", "stem"), [("wrn_28_2", "cifar"), ("vit_tiny_patch16_224", "imagenet")])
def test_a_network_without_such_blocks_is_refused(name: str, stem: str) -> None:
    with pytest.raises(ConfigError, match="zero_init_last is for timm's ResNets, got"):
        build_backbone(name, stem=stem, zero_init_last=True)  # type: ignore[arg-type]
