"""CPU forms of the kernels behind torch's SyncBatchNorm, which torch has for GPUs only, written from their use.

With them the path that batch norm takes on GPUs runs on two gloo processes and can be compared with one process.
"""

from typing import Any

import torch
from torch import Tensor

_LIBRARY = torch.library.Library("aten", "IMPL")


def register() -> None:
    for function in (
        batch_norm_stats,
        batch_norm_gather_stats_with_counts,
        batch_norm_elemt,
        batch_norm_backward_reduce,
        batch_norm_backward_elemt,
    ):
        _LIBRARY.impl(function.__name__, function, "CPU")
    _LIBRARY.impl("batch_norm_elemt.out", _normalise_into, "CPU")


def _axes(x: Tensor) -> list[int]:
    return [axis for axis in range(x.dim()) if axis != 1]


def _column(values: Tensor, x: Tensor) -> Tensor:
    return values.view(1, -1, *[1] * (x.dim() - 2))


def batch_norm_stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    variance, mean = torch.var_mean(x, _axes(x), correction=0)
    return mean, (variance + eps).rsqrt()


def batch_norm_gather_stats_with_counts(
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    weights = counts[:, None] / counts.sum()
    total_mean = (weights * mean).sum(0)
    variance = (weights * (invstd**-2 - eps + (mean - total_mean) ** 2)).sum(0)
    if running_mean is not None and running_var is not None:
        running_mean.lerp_(total_mean, momentum)
        running_var.lerp_(variance * counts.sum() / (counts.sum() - 1), momentum)
    return total_mean, (variance + eps).rsqrt()


def batch_norm_elemt(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, eps: float
) -> Tensor:
    y = (x - _column(mean, x)) * _column(invstd, x)
    y = y if weight is None else y * _column(weight, x)
    return y if bias is None else y + _column(bias, x)


def _normalise_into(x: Tensor, *rest: Any, out: Tensor) -> Tensor:
    return out.copy_(batch_norm_elemt(x, *rest))


def batch_norm_backward_reduce(
    dy: Tensor, x: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor | None, *needed: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    sum_dy = dy.sum(_axes(x))
    sum_dy_xmu = (dy * (x - _column(mean, x))).sum(_axes(x))
    return sum_dy, sum_dy_xmu, sum_dy_xmu * invstd, sum_dy.clone()


def batch_norm_backward_elemt(
    dy: Tensor,
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
) -> Tensor:
    slope = _column(invstd**2 * sum_dy_xmu / count.sum(), x)
    dx = (dy - _column(sum_dy / count.sum(), x) - (x - _column(mean, x)) * slope) * _column(invstd, x)
    return dx if weight is None else dx * _column(weight, x)
