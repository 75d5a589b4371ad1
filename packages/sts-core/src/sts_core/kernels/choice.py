"""The choice of a kernel for each tensor and rule: the fastest that can take it, the reference for the rest."""

import os
from collections.abc import Sequence
from functools import partial
from typing import get_args

import torch
from torch import Tensor

from sts_core.errors import ConfigError
from sts_core.kernels.interface import Backend, Kernel, Pair, Rule
from sts_core.kernels.offload import OffloadKernel, travels
from sts_core.kernels.reference import ReferenceKernel
from sts_core.kernels.rounding import RoundingKernel


def bind(pairs: Sequence[Pair], backend: Backend = "auto", *, deferred: bool = False) -> list[Kernel]:
    """The kernels that together update all pairs: the fastest that can take each tensor, the reference for the rest.

    With `deferred` teachers in the host's memory are updated a step later, see OffloadKernel.
    """
    backend = _chosen(backend)
    kernels: list[Kernel] = []
    rest = list(pairs)
    if backend != "triton" and (away := [pair for pair in rest if travels(pair)]):
        kernels.append(OffloadKernel(away, partial(bind, backend=backend), deferred=deferred))
        rest = [pair for pair in rest if not travels(pair)]
    if backend in ("auto", "native"):
        from sts_core.kernels import native

        rest = native.claim(rest, kernels, required=backend == "native")
    if backend in ("auto", "triton"):
        from sts_core.kernels import triton

        rest = triton.claim(rest, kernels, required=backend == "triton")
    narrow = [pair for pair in rest if pair.teachers[0].dtype == torch.bfloat16]
    if narrow:
        kernels.append(RoundingKernel(narrow))
    if len(rest) > len(narrow):
        kernels.append(ReferenceKernel([pair for pair in rest if pair.teachers[0].dtype != torch.bfloat16]))
    return kernels


def update(kernels: Sequence[Kernel], rules: Sequence[Rule], skip: Tensor | None = None) -> None:
    """Move each teacher by its rule; where a kernel does not support one, the reference takes its place.

    `skip`, one float, says 1 where the update must not take place.
    """
    rules = [_idle(rule) if rule.momentum == 1.0 and type(rule) is Rule else rule for rule in rules]
    for kernel in kernels:
        supported = [kernel.supports(rule) for rule in rules]
        if all(supported):
            kernel.update(rules, skip)
            continue
        split = [
            (rule, _idle(rule)) if own else (_idle(rule), rule) for rule, own in zip(rules, supported, strict=True)
        ]
        kernel.update([mine for mine, _ in split], skip)
        ReferenceKernel(kernel.pairs).update([others for _, others in split], skip)


def _idle(rule: Rule) -> Rule:
    """A rule that every kernel supports and that moves nothing."""
    return Rule(rule.momentum, 1.0, rule.granularity, rule.step, rule.seed)


def _chosen(backend: Backend) -> Backend:
    """The argument, or what STS_CORE_BACKEND asks for."""
    name = os.environ.get("STS_CORE_BACKEND", "auto") if backend == "auto" else backend
    for known in get_args(Backend):
        if name == known:
            return known  # type: ignore[no-any-return]
    raise ConfigError(
        f"backend must be one of {', '.join(get_args(Backend))}, got {name!r}: leave it out for the fastest"
    )
