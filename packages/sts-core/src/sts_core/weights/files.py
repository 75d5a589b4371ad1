"""Weights that somebody saved: read without running code, found by name in whatever holds them, loaded all or none.

MoCo keeps its backbone under `state_dict.module.encoder_q.`, v3 under `state_dict.module.base_encoder.`, SimSiam under
`state_dict.module.encoder.`, DINO under `teacher.module.backbone.` or `teacher.backbone.`, VICReg under
`model.module.backbone.`, BYOL's ports under `online_encoder.` and the like; others save the network alone. No list of
layouts is needed: a prefix fits if every tensor of the network is behind it, in its shape. A partial match would leave
part of a network at random values, and look like a bad method afterwards.
"""

import argparse
import hashlib
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sts_core.errors import CheckpointError

EVALUATED = ("encoder_q.", "base_encoder.", "teacher.", "online")
"""Of several networks in a file the one its authors evaluate: MoCo's student, DINO's teacher, BYOL's online."""

MAX_NAMED = 8
"""How many names an error spells out before it counts the rest."""


def read_weights(path: str | Path) -> dict[str, Any]:
    """What a .safetensors or torch file holds; no code is unpickled, and of objects only argparse's namespaces are."""
    path = Path(path)
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file  # only here: sts-core itself needs torch alone

            return dict(load_file(path))
        with torch.serialization.safe_globals([argparse.Namespace]):  # DINO saves its arguments beside the weights
            tree = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # torch's own words advise to run the code
        code = re.search(r"unsupported (?:global|class)[^\n]*", str(error), re.IGNORECASE)
        if code is None:
            raise CheckpointError(
                f"{path} cannot be read as a checkpoint: it is damaged, or another kind of file"
            ) from None
        told = f"{path} holds more than tensors and plain values, and was not opened ({code[0]})"
        raise CheckpointError(told) from None
    except ImportError as error:
        raise CheckpointError(f"{path} needs the package {error.name} to be read: install it") from None
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except Exception as error:  # each reader has its own; the remedy is the same
        raise CheckpointError(f"{path} cannot be read as a checkpoint ({reason_of(error)}): copy it again") from None
    if not isinstance(tree, dict):
        raise CheckpointError(f"{path} must hold a dict of tensors or of sections, it holds a {type(tree).__name__}")
    return tree


def load_strictly(
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    *,
    origin: str = "the checkpoint",
    missing: Set[str] = frozenset(),
) -> None:
    """Copy `tensors` into `module`; unless names and shapes agree in full, change nothing and say what differs.

    The tensors in `missing` are not expected.
    """
    expected = {name: value for name, value in module.state_dict().items() if name not in missing}
    reshaped = [
        f"{name} {tuple(tensors[name].shape)} for {tuple(value.shape)}"
        for name, value in expected.items()
        if name in tensors and tensors[name].shape != value.shape
    ]
    differences = {
        "missing": [name for name in expected if name not in tensors],
        "unknown": [name for name in tensors if name not in expected],
        "of another shape": reshaped,
    }
    found = [f"{len(names)} {kind} ({some(names)})" for kind, names in differences.items() if names]
    if found:
        raise CheckpointError(
            f"all {len(expected)} tensors of the network must be in {origin} and no others, but {'; '.join(found)}: "
            "load the weights of this very network"
        )
    module.load_state_dict(dict(tensors), strict=not missing)


def load_found_(module: nn.Module, path: str | Path, *, prefix: str | None = None) -> str:
    """Fill `module` from a file of any layout, all of its tensors or none; returns the prefix they were found behind.

    `prefix`, or its end, chooses among several networks; without it the one that the authors evaluate is taken.
    """
    tensors = dict(_flattened(read_weights(path)))
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


def digest_of(module: nn.Module) -> str:
    """SHA-256 of the names, types, shapes and bits of all parameters and buffers, whatever file they came from."""
    digest = hashlib.sha256()
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        flat = tensor.detach().cpu().contiguous().flatten()
        digest.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
    return digest.hexdigest()


def some(names: Sequence[object]) -> str:
    """The first few of `names`, and how many more there are."""
    shown = ", ".join(str(name) for name in names[:MAX_NAMED])
    return shown if len(names) <= MAX_NAMED else f"{shown} and {len(names) - MAX_NAMED} more"


def reason_of(error: Exception) -> str:
    """The first sentence of what an error says, to be put inside one of ours."""
    return str(error).splitlines()[0].split(". ")[0].rstrip(".") if str(error).strip() else type(error).__name__


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


def _chosen(wanted: Mapping[str, tuple[int, ...]], tensors: Mapping[str, Tensor], path: str | Path) -> str:
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
        raise CheckpointError(f"{path} holds the network {len(best)} times, behind {some(best)}: name one as prefix")
    return (preferred or best)[0]
