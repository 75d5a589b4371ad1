"""The choice of a kernel for each tensor: the fastest that can take it, the reference for the rest."""

import os
from collections.abc import Sequence
from typing import get_args

from sts_core.errors import ConfigError
from sts_core.kernels.interface import Backend, Kernel, Pair
from sts_core.kernels.reference import (
    ReferenceKernel,
)


def bind(pairs: Sequence[Pair], backend: Backend = "auto") -> list[Kernel]:
    """The kernels that together update all pairs: the fastest that can take each tensor, the reference for the rest."""
    backend = _chosen(backend)
    kernels: list[Kernel] = []
    rest = list(pairs)
    if backend in ("auto", "native"):
        from sts_core.kernels import native

        rest = native.claim(rest, kernels, required=backend == "native")
    if backend in ("auto", "triton"):
        from sts_core.kernels import triton

        rest = triton.claim(rest, kernels, required=backend == "triton")
    if rest:
        kernels.append(ReferenceKernel(rest))
    return kernels


def _chosen(backend: Backend) -> Backend:
    """The argument, or what STS_CORE_BACKEND asks for."""
    name = os.environ.get("STS_CORE_BACKEND", "auto") if backend == "auto" else backend
    for known in get_args(Backend):
        if name == known:
            return known  # type: ignore[no-any-return]
    raise ConfigError(
        f"backend must be one of {', '.join(get_args(Backend))}, got {name!r}: leave it out for the fastest"
    )
