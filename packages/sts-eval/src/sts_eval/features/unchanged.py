"""Proof that an evaluation left the network as it was: every parameter, every buffer, every mode."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from sts_core import StateError
from sts_core.weights import digest_of


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
