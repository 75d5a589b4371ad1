"""Proof that an evaluation left the network as it was: every parameter, every buffer, every mode."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from sts_core import StateError


def _raw_bytes(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().flatten()
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def digest_of(module: nn.Module) -> str:
    """SHA-256 of the names, types, shapes and bits of all parameters and buffers."""
    digest = hashlib.sha256()
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(_raw_bytes(tensor))
    return digest.hexdigest()


@contextmanager
def unchanged(module: nn.Module) -> Iterator[str]:
    """Run the block with `module` in evaluation mode; afterwards restore each mode and compare all bits.

    Batch norm in training mode is the classic way to change a network while measuring it. Yields the digest.
    """
    before = digest_of(module)
    modes = [(child, child.training) for child in module.modules()]
    module.eval()
    try:
        yield before
    finally:
        for child, mode in modes:
            child.training = mode
    if digest_of(module) != before:
        raise StateError(
            "an evaluation must not change the network, but its parameters or buffers differ from before: "
            "look for a forward pass that updates them even in evaluation mode"
        )
