"""Notices, in microseconds, when a module is no longer the one that was paired."""

from torch import Tensor, nn

from sts_core.errors import PairingError
from sts_core.pairing import unwrap


class Watch:
    """Remembers which tensors and submodules a module had and compares by identity, without walking names."""

    def __init__(self, role: str, module: nn.Module) -> None:
        self.role = role
        self._modules = [(m, m._parameters, m._modules, len(m._parameters), len(m._modules)) for m in _walk(module)]
        self._parameters = [
            (owner._parameters, key, tensor) for owner in _walk(module) for key, tensor in owner._parameters.items()
        ]
        self._children = [(m._modules, key, child) for m in _walk(module) for key, child in m._modules.items()]

    def check(self) -> None:
        """Raise if a parameter or submodule was added, removed or replaced since the pairing."""
        for module, parameters, children, num_parameters, num_children in self._modules:
            if len(parameters) != num_parameters or len(children) != num_children:
                raise self._changed(type(module).__name__)
        for owner, key, tensor in self._parameters:
            if owner.get(key) is not tensor:
                raise self._changed(key)
        for modules, key, child in self._children:
            if modules.get(key) is not child:
                raise self._changed(key)

    def _changed(self, where: str) -> PairingError:
        return PairingError(
            f"the {self.role}'s parameters must stay those that were paired, but {where!r} was added, removed or "
            f"replaced: build the Smoother after the last change, and carry on with load_state_dict(old.state_dict())"
        )


def _walk(module: nn.Module) -> list[nn.Module]:
    return list(unwrap(module).modules())


def addresses(tensors: list[Tensor]) -> list[int]:
    """Where the tensors' data lies: `.to()`, `.data =` and assigning loads move it without replacing the tensor."""
    return list(map(Tensor.data_ptr, tensors))
