"""Networks with the weights that timm, or a repository in the hub's format, has for them."""

import logging
from pathlib import Path
from typing import Any

from torch import nn

from sts_core.errors import CheckpointError
from sts_core.weights.files import reason_of

HUBS = ("hf-hub:", "hf_hub:", "local-dir:")
"""How names of timm begin that say where the network's config and weights are."""

HUB_FILES = ("config.json", "model.safetensors")
"""What a network in the hub's format consists of."""


def pretrained_name(source: str | Path) -> str | None:
    """The name under which timm has the pretrained network `source`; None where it is none of timm's.

    That is one of timm's own names (`resnet50.a1_in1k`), a repository of the Hugging Face hub (`hf-hub:OWNER/NAME`) or
    a folder in the hub's format, with config.json beside model.safetensors.
    """
    import timm  # only here: sts-core itself needs torch alone

    if all((Path(source) / file).is_file() for file in HUB_FILES):
        return f"local-dir:{source}"
    name = str(source)
    return name if name.startswith(HUBS) or timm.is_model(name) else None


def pretrained_network(name: str, **options: Any) -> nn.Module:
    """timm's network of that name with its pretrained weights, fetched if need be, and without its classifier."""
    import timm

    retries = logging.getLogger("huggingface_hub.utils._http")  # it reports every one, twenty lines without a network
    level = retries.level
    retries.setLevel(logging.ERROR)
    try:
        module: nn.Module = timm.create_model(name, pretrained=True, num_classes=0, **options)
    except Exception as error:  # timm, the hub and its HTTP client each have their own; the remedy is the same
        raise CheckpointError(
            f"a timm name stands for pretrained weights, but those of {name!r} could not be had ({reason_of(error)}): "
            "pass a checkpoint, or connect to the network or download them first"
        ) from None
    finally:
        retries.setLevel(level)
    return module
