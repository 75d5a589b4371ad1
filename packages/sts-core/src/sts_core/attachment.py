"""Updates that follow an optimizer: once after every step that it really makes."""

from collections.abc import Callable, Sequence
from typing import ParamSpec

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from sts_core.errors import ConfigError, PairingError
from sts_core.pairing import unwrap
from sts_core.swap import check_not_swapped

P = ParamSpec("P")


class Attachment:
    """What `attach` returns: `detach()` ends the updates."""

    def __init__(self, student: nn.Module, optimizers: Sequence[object], update: Callable[[], None]) -> None:
        inner = [_unwrap_optimizer(optimizer) for optimizer in optimizers]
        _check_holds(student, inner)
        self._student, self._update = student, update
        self._handles: list[RemovableHandle] = [o.register_step_pre_hook(self._before) for o in inner]
        self._handles.append(inner[-1].register_step_post_hook(self._after))

    @property
    def is_active(self) -> bool:
        """Whether optimizer steps are still followed by updates."""
        return bool(self._handles)

    def detach(self) -> None:
        """Take the hooks off the optimizers; a second call does nothing."""
        while self._handles:
            self._handles.pop().remove()

    def _before(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        check_not_swapped(self._student, "an optimizer must not step")

    def _after(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        # A GradScaler leaves it to a fused optimizer to skip a step whose gradients overflowed, and says so here.
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is None or not bool(found_inf):
            eagerly(self._update)()


def eagerly(update: Callable[P, None]) -> Callable[P, None]:
    """The update, not traced where a whole step is compiled: it is other Python at every step."""
    return torch.compiler.disable(update) if torch.compiler.is_compiling() else update  # type: ignore[no-untyped-call]


def _unwrap_optimizer(optimizer: object) -> Optimizer:
    """The optimizer itself, or the one inside a wrapper that has no hooks of its own, such as accelerate's."""
    inner = optimizer
    while not hasattr(inner, "_optimizer_step_post_hooks") and hasattr(inner, "optimizer"):
        inner = inner.optimizer
    if not isinstance(inner, Optimizer):
        raise ConfigError(f"attach needs a torch.optim.Optimizer, got {type(optimizer).__name__}")
    return inner


def _check_holds(student: nn.Module, optimizers: Sequence[Optimizer]) -> None:
    if not optimizers:
        raise ConfigError("attach needs at least one optimizer, got none")
    weights = set(unwrap(student).parameters())
    for optimizer in optimizers:
        if not any(weight in weights for group in optimizer.param_groups for weight in group["params"]):
            raise PairingError(
                f"the optimizer must hold the student's parameters, but this {type(optimizer).__name__} has none of "
                f"them: build it from student.parameters() after the last change to the student"
            )
