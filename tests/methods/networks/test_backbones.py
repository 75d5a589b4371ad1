"""Backbones by name: shapes, initialisation, and the wide ResNet's structure."""

import pytest
import torch
from torch import Tensor, nn

from sts_core import ConfigError
from sts_methods import build_backbone
from sts_methods.networks.backbones import features, num_features
from sts_methods.networks.heads import Encoder
from sts_methods.networks.wide_resnet import BN_MOMENTUM, Block, WideResNet


@pytest.mark.parametrize(
    ("name", "stem", "size"),
    [
        ("resnet18", "imagenet", 64),
        ("resnet18", "cifar", 32),
        ("resnet10t", "cifar", 16),
        ("mobilenetv3_small_050", "imagenet", 64),
        ("test_vit", "imagenet", 96),
        ("wrn_10_1", "cifar", 32),
    ],
)
def test_a_backbone_maps_images_to_pooled_features_of_its_stated_width(name: str, stem: str, size: int) -> None:
    backbone = build_backbone(name, stem=stem).eval()  # type: ignore[arg-type]
    with torch.no_grad():
        features = backbone(torch.zeros(2, 3, size, size))
    assert features.shape == (2, num_features(backbone))


def test_a_vision_transformer_takes_crops_of_several_sizes() -> None:
    backbone = build_backbone("test_vit").eval()
    with torch.no_grad():
        shapes = {backbone(torch.zeros(1, 3, size, size)).shape for size in (48, 160)}
    assert shapes == {(1, num_features(backbone))}


def test_the_cifar_stem_keeps_the_resolution() -> None:
    network = build_backbone("resnet18", stem="cifar")
    x = torch.zeros(1, 3, 32, 32)
    assert network.maxpool(network.conv1(x)).shape == (1, 64, 32, 32)  # type: ignore[operator]


def test_no_residual_branch_of_a_resnet_starts_at_zero() -> None:
    norms = [m for m in build_backbone("resnet18").modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(norms) == 20
    assert all((norm.weight == 1.0).all() for norm in norms)


def test_wrn_28_2_has_the_parameters_of_the_reference() -> None:
    network = build_backbone("wrn_28_2", stem="cifar")
    classifier = 128 * 10 + 10
    # 1,467,610 is what TorchSSL and USB print for wrn_28_2 with ten classes
    assert sum(p.numel() for p in network.parameters()) + classifier == 1_467_610
    assert all(m.momentum == BN_MOMENTUM == 0.001 for m in network.modules() if isinstance(m, nn.BatchNorm2d))


def test_wrn_28_8_is_four_times_as_wide() -> None:
    assert num_features(WideResNet(depth=28, width=8)) == 512


def test_only_the_first_block_of_a_wide_resnet_activates_its_shortcut() -> None:
    network = WideResNet(depth=10, width=1).eval()
    blocks = [m for m in network.modules() if isinstance(m, Block)]
    seen: dict[int, tuple[Tensor, Tensor]] = {}
    for i, block in enumerate(blocks):
        block.register_forward_pre_hook(lambda _, args, i=i: seen.update({i: (args[0], args[0])}))
        block.shortcut.register_forward_pre_hook(lambda _, args, i=i: seen.update({i: (seen[i][0], args[0])}))
    with torch.no_grad():
        network(torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)))
        for i, block in enumerate(blocks):
            into_block, into_shortcut = seen[i]
            activated = nn.functional.leaky_relu(block.bn1(into_block), 0.1)
            assert torch.equal(into_shortcut, activated if i == 0 else into_block)
            assert not torch.equal(into_block, activated)


def test_features_of_another_width_than_stated_are_refused() -> None:
    backbone = WideResNet(depth=10, width=1)
    backbone.num_features = 960
    with (
        pytest.raises(ConfigError, match=r"the 960 features .* WideResNet makes \[64\] of 16x8 pixels"),
        torch.no_grad(),
    ):
        features(backbone, torch.zeros(2, 3, 16, 8))


@pytest.mark.parametrize("name", ["fasternet_t1", "rexnet_100", "ghostnet_050"])  # by DropPath, Dropout, a function
def test_a_backbone_that_drops_by_default_draws_nothing_in_training(name: str) -> None:
    backbone = build_backbone(name).train()
    before = torch.get_rng_state()
    assert backbone(torch.zeros(2, 3, 64, 64)).isfinite().all()
    assert torch.equal(torch.get_rng_state(), before)


def test_an_image_size_that_the_patches_do_not_divide_is_refused_in_one_sentence() -> None:
    encoder = Encoder(build_backbone("test_vit"), nn.Identity())
    with pytest.raises(ConfigError, match=r"VisionTransformer refuses 40x40 \(.*\): change image_size or the backbone"):
        encoder(torch.zeros(1, 3, 40, 40))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet55", {}, "did you mean 'resnet50'"),
        ("wrn_28_2", {"stem": "imagenet"}, "set stem to cifar"),
        ("wrn_27_2", {"stem": "cifar"}, "depth 6n"),
        ("test_vit", {"stem": "cifar"}, "use a timm ResNet"),
        ("resnet18", {"stem": "tiny"}, '"imagenet" or "cifar"'),
    ],
)
def test_a_wrong_backbone_is_an_error_with_a_remedy(name: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_backbone(name, **options)  # type: ignore[arg-type]
