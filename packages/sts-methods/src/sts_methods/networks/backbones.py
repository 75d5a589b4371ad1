"""Feature extractors by name: any of timm's, and wide ResNets of our own."""

import difflib
import re
from typing import Literal, cast

from torch import Tensor, nn

from sts_core import ConfigError
from sts_methods.networks.wide_resnet import WideResNet

Stem = Literal["imagenet", "cifar"]

_WIDE_RESNET = re.compile(r"wrn_(\d+)_(\d+)")


def build_backbone(name: str, *, stem: Stem = "imagenet", zero_init_last: bool = False) -> nn.Module:
    """A network from images [N, 3, H, W] to pooled features [N, num_features], with attribute `num_features`.

    `name` is one of timm's or `wrn_<depth>_<width>`, without dropout and stochastic depth even where timm's default has
    them. The CIFAR stem, a 3x3 convolution of stride 1 and no max-pool, exists for ResNets; a wide ResNet has no other.
    `zero_init_last` starts the last norm of each of a timm ResNet's blocks at zero, so that the block adds nothing.
    """
    if stem not in ("imagenet", "cifar"):
        raise ConfigError(f'stem must be "imagenet" or "cifar", got {stem!r}')
    wide = _WIDE_RESNET.fullmatch(name)
    if wide and zero_init_last:
        raise ConfigError(f"zero_init_last is for timm's ResNets, got {name!r}")
    if wide:
        return _wide_resnet(int(wide[1]), int(wide[2]), stem=stem)
    network = _from_timm(name, zero_init_last=zero_init_last)
    if stem == "cifar":
        _use_cifar_stem_(network, name)
    return network


def num_features(backbone: nn.Module) -> int:
    """The width of a backbone's output."""
    return int(cast(int, backbone.num_features))


def features(backbone: nn.Module, images: Tensor) -> Tensor:
    """What the backbone makes of the images, [N, num_features].

    timm does not promise this of every network and image size, and no constructor can tell.
    """
    size = "x".join(map(str, images.shape[2:]))
    try:
        made: Tensor = backbone(images)
    except AssertionError as error:  # how timm refuses a size
        reason = str(error).rstrip(".")
        raise ConfigError(
            f"the backbone must suit the image size, {type(backbone).__name__} refuses {size} ({reason}): change "
            f"image_size or the backbone"
        ) from error
    if made.shape[1:] != (num_features(backbone),):
        raise ConfigError(
            f"a backbone must make the {num_features(backbone)} features per image that it states, "
            f"{type(backbone).__name__} makes {list(made.shape[1:])} of {size} pixels: use another backbone"
        )
    return made


def _wide_resnet(depth: int, width: int, *, stem: Stem) -> WideResNet:
    if stem != "cifar":
        raise ConfigError(f"wrn_{depth}_{width} is made for small images, got the stem {stem}: set stem to cifar")
    return WideResNet(depth=depth, width=width)


def _from_timm(name: str, *, zero_init_last: bool) -> nn.Module:
    import timm  # takes seconds: those who only read configs do not wait for it

    if not timm.is_model(name):
        similar = difflib.get_close_matches(name, [*timm.list_models(), "wrn_28_2", "wrn_28_8"], n=1)
        hint = f"did you mean {similar[0]!r}" if similar else "timm.list_models() lists them"
        raise ConfigError(f"backbone must be a timm name or wrn_<depth>_<width>, got {name!r}: {hint}")
    options: dict[str, bool] = {}
    if timm.models.is_model_in_modules(name, ["resnet"]):
        # timm starts the last norm of each block at zero; torchvision's ResNet, which MoCo v2 trains, does not.
        options["zero_init_last"] = zero_init_last
    elif zero_init_last:
        raise ConfigError(f"zero_init_last is for timm's ResNets, got {name!r}")
    if timm.models.is_model_in_modules(name, ["vision_transformer"]):
        # Multi-crop feeds two sizes of image to one network, so the position embeddings must resize.
        options["dynamic_img_size"] = True
    network: nn.Module = timm.create_model(name, num_classes=0, **options)
    _drop_nothing_(network)
    # In some networks a pre-classifier layer follows the pooling and stays when the classifier goes.
    width = int(getattr(network, "head_hidden_size", None) or num_features(network))
    setattr(network, "num_features", width)  # noqa: B010 - the type checker sees Tensor | Module behind the dot
    return network


def _drop_nothing_(network: nn.Module) -> None:
    """Set every probability of dropout and stochastic depth to 0, in modules and where a forward pass reads it.

    Their draws come from torch's generator, so that no seed, resume or number of workers would repeat them.
    """
    for module in network.modules():
        for name, value in vars(module).items():
            if isinstance(value, float) and ("drop" in name or isinstance(module, nn.modules.dropout._DropoutNd)):
                setattr(module, name, 0.0)


def _use_cifar_stem_(network: nn.Module, name: str) -> None:
    from timm.models.resnet import ResNet

    if not isinstance(network, ResNet):
        raise ConfigError(
            f"the stem cifar replaces the first layers of a ResNet, got {name!r}: use a timm ResNet, a "
            f"wrn_<depth>_<width> or the stem imagenet"
        )
    conv = nn.Conv2d(3, network.bn1.num_features, kernel_size=3, stride=1, padding=1, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    network.conv1, network.maxpool = conv, nn.Identity()
