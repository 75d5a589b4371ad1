"""Weights that other people published: the tensors of a backbone found by name inside whatever file holds them.

MoCo keeps them under `state_dict.module.encoder_q.`, SimSiam under `state_dict.module.encoder.`, DINO under
`teacher.module.backbone.` or `teacher.backbone.`, VICReg under `model.module.backbone.`, BYOL's ports under
`online_encoder.` and the like; others save the network alone. No list of layouts is needed: a prefix fits if every
tensor of the network is behind it, in its shape.
"""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sts_core import CheckpointError
from sts_eval.features.samples import some

EVALUATED = ("encoder_q.", "teacher.", "online")
"""Of several networks in a file the one its authors evaluate: MoCo's query encoder, DINO's teacher, BYOL's online."""


def load_foreign_(module: nn.Module, path: Path, *, prefix: str | None = None) -> str:
    """Fill `module` from `path`, all of its tensors or none; returns the prefix they were found behind."""
    tensors = dict(_flattened(read_checkpoint(path)))
    wanted = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    chosen = _chosen(wanted, tensors, path) if prefix is None else _named(prefix, wanted, tensors)
    found = {name: tensors[chosen + name] for name in wanted if chosen + name in tensors}
    lost = [name for name, shape in wanted.items() if name not in found or tuple(found[name].shape) != shape]
    if lost:
        raise CheckpointError(
            f"every tensor of the network must be in {path} in its shape, but behind {chosen!r} {len(lost)} of "
            f"{len(wanted)} are not ({some(lost)}): name the network that these weights belong to"
        )
    module.load_state_dict(found)
    return chosen


def read_checkpoint(path: Path) -> Any:
    """What a .safetensors or torch file holds; no code is unpickled, and of objects only argparse's namespaces are."""
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        with torch.serialization.safe_globals([argparse.Namespace]):  # DINO saves its arguments beside the weights
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # each reader has its own; the remedy is the same
        reason = str(error).splitlines()[0].split(". ")[0].rstrip(".") if str(error) else type(error).__name__
        raise CheckpointError(
            f"{path} must be a readable file of tensors, but it is not ({reason}): copy it again"
        ) from None


def _flattened(value: Any, place: str = "") -> Iterator[tuple[str, Tensor]]:
    """All tensors of nested dicts, by dotted path."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flattened(inner, f"{place}.{key}" if place else str(key))
    elif isinstance(value, Tensor):
        yield place, value


def _named(prefix: str, wanted: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """The whole prefix that ends in the one given, with or without its dot."""
    ending = f"{prefix.rstrip('.')}." if prefix else ""
    first = next(iter(wanted))
    places = [key.removesuffix(first) for key in tensors if key.endswith(ending + first)]
    return min((place for place in places if f".{place}".endswith(f".{ending}")), key=len, default=ending)


def _chosen(wanted: Mapping[str, tuple[int, ...]], tensors: Mapping[str, Tensor], path: Path) -> str:
    """The prefix behind which most tensors are found; of equals the one that is evaluated."""
    first = next(iter(wanted))
    places = [key.removesuffix(first) for key in tensors if f".{key}".endswith(f".{first}")]
    if not places:
        raise CheckpointError(
            f"{path} must hold the tensors of the network, but none is called {first!r}: it has {some(list(tensors))}"
        )
    matched = {place: sum(place + name in tensors for name in wanted) for place in places}
    best = [place for place in places if matched[place] == max(matched.values())]
    preferred = [place for mark in EVALUATED for place in best if mark in place]
    if len(best) > 1 and not preferred:
        raise CheckpointError(f"{path} holds the network {len(best)} times, behind {some(best)}: name one with prefix=")
    return (preferred or best)[0]
