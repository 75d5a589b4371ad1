"""Normalisation by the statistics of a batch that ranks share, forwards and backwards: on CPUs and on accelerators."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from sts_core.distributed import gather_batch, statistics_group, sum_over_ranks

_shares: tuple[int, ...] | None = None


@contextmanager
def shared_as(shares: tuple[int, ...] | None) -> Iterator[None]:
    """In here the ranks' batches are in these ratios, which device kernels must know without waiting for each other."""
    global _shares  # and no context variable: autograd's threads look, too
    before, _shares = _shares, shares
    try:
        yield
    finally:
        _shares = before


class Normalise(torch.autograd.Function):
    """y = γ·x̂ + β with x̂ = (x − μ)/√(σ² + ε), where μ and σ² are those of the global batch of n values a channel.

        ∂L/∂x = γ/√(σ² + ε) · (dy − Σdy/n − x̂·Σ(dy·x̂)/n),   sums over all ranks

    Each of the input's `num_parts` parts is a batch of its own, so that μ and σ² are [parts, channels]. ∂L/∂γ and
    ∂L/∂β stay local sums: whoever averages gradients over ranks (DDP) treats them like any other parameter.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, num_parts: int
    ) -> tuple[Any, ...]:
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        parts = wide.chunk(num_parts)
        mean, variance, count = _global_statistics(parts)
        ctx.save_for_backward(wide, weight, mean, (variance + eps).rsqrt())
        ctx.count, ctx.eps, ctx.dtype = count, eps, x.dtype
        ctx.mark_non_differentiable(mean, variance)
        normalised = [
            F.batch_norm(part, mean[i], variance[i], weight, bias, training=False, eps=eps)
            for i, part in enumerate(parts)
        ]
        y = normalised[0] if num_parts == 1 else torch.cat(normalised)
        return y.to(x.dtype), mean, variance, count

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse_std = ctx.saved_tensors
        dy = dy.to(x.dtype)
        num_parts = len(mean)
        sums = [
            torch.ops.aten.native_batch_norm_backward(
                dy_part, part, weight, None, None, mean[i], inverse_std[i], True, ctx.eps, [False, True, True]
            )[1:]
            for i, (dy_part, part) in enumerate(zip(dy.chunk(num_parts), x.chunk(num_parts), strict=True))
        ]
        dweight, dbias = (torch.stack(parts) for parts in zip(*sums, strict=True))  # [parts, channels]
        slope, offset = sum_over_ranks(torch.stack([dweight, dbias])) / ctx.count
        scale = inverse_std if weight is None else inverse_std * weight
        # scale·(dy − offset − slope·(x − μ)/σ) as a·dy + b·x + c: one pass fewer over the activations
        b = -scale * slope * inverse_std
        c = -scale * offset - b * mean
        shape = (num_parts, 1, -1) + (1,) * (x.dim() - 2)
        apart = (num_parts, -1, *x.shape[1:])
        dx = torch.addcmul(c.view(shape), dy.view(apart), scale.view(shape)).addcmul_(x.view(apart), b.view(shape))
        local = (None, None) if weight is None else (dweight.sum(dim=0), dbias.sum(dim=0))
        return dx.flatten(0, 1).to(ctx.dtype), *local, None, None


def _global_statistics(parts: Sequence[Tensor]) -> tuple[Tensor, Tensor, int]:
    """μ = Σ nᵢμᵢ/n and σ² = Σ nᵢ(σᵢ² + (μᵢ − μ)²)/n from the ranks' own statistics (Chan et al., 1979), and n."""
    mean, variance = map(
        torch.stack, zip(*(torch.batch_norm_update_stats(x, None, None, 0.0) for x in parts), strict=True)
    )
    count = torch.full_like(mean, parts[0].numel() // parts[0].shape[1])
    statistics = gather_batch(torch.stack([mean, variance, count])[None]).double()  # [ranks, 3, parts, channels]
    means, variances, counts = statistics.unbind(1)
    total = counts.sum(0)
    mean64 = (counts * means).sum(0) / total
    variance64 = (counts * (variances + (means - mean64) ** 2)).sum(0) / total
    return mean64.to(mean.dtype), variance64.to(mean.dtype), int(total[0, 0])


class NormaliseOnDevice(torch.autograd.Function):
    """`Normalise` by the kernels of torch's SyncBatchNorm; the running statistics follow part after part.

    torch's own function drops ranks without images by a mask, for which the host waits for the device three times a
    layer. Here every rank knows how many values the others have (`shared_as`), and the exchange has a process group of
    its own, where no layer queues behind a bucket of gradients.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        momenta: list[float],
        eps: float,
    ) -> Tensor:
        y, saved = normalised_on_device(x, weight, bias, running_mean, running_var, momenta, eps)
        ctx.save_for_backward(*saved)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, num_values, *statistics = ctx.saved_tensors
        means, inverse_stds = statistics[::2], statistics[1::2]
        parts = list(zip(_dense(dy).chunk(len(means)), x.chunk(len(means)), means, inverse_stds, strict=True))
        reduced = [torch.batch_norm_backward_reduce(*part, weight, True, True, True) for part in parts]
        sums = torch.cat([total for sum_dy, sum_dy_x, *_ in reduced for total in (sum_dy, sum_dy_x)])
        dist.all_reduce(sums, group=statistics_group())
        totals = iter(sums.view(2 * len(parts), -1).unbind())
        dx = [torch.batch_norm_backward_elemt(*part, weight, next(totals), next(totals), num_values) for part in parts]
        dweight_and_dbias = reduced[0][2:]
        for _, _, *gradients in reduced[1:]:
            torch._foreach_add_(dweight_and_dbias, tuple(gradients))
        local = (None, None) if weight is None else dweight_and_dbias
        return dx[0] if len(dx) == 1 else torch.cat(dx), *local, None, None, None, None


def normalised_on_device(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momenta: Sequence[float],
    eps: float,
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """What `NormaliseOnDevice` makes of x, and what its backward pass needs."""
    x, group = _dense(x), statistics_group()
    parts, ranks = x.chunk(len(momenta)), group.size()
    local = torch.cat([t for part in parts for t in torch.batch_norm_stats(part, eps)])
    gathered = local.new_empty(ranks * len(local))
    dist.all_gather_into_tensor(gathered, local, group)
    mine, shares = parts[0].numel() // x.shape[1], _shares or (1,) * ranks
    counts, num_values = _counts(mine, shares, group.rank(), local.dtype, x.device)
    y, statistics, theirs = torch.empty_like(x), [], iter(gathered.view(ranks, -1, x.shape[1]).unbind(1))
    for part, out, momentum in zip(parts, y.chunk(len(parts)), momenta, strict=True):
        means, inverse_stds = next(theirs), next(theirs)
        mean, inverse_std = torch.batch_norm_gather_stats_with_counts(
            part, means, inverse_stds, running_mean, running_var, momentum, eps, counts
        )
        torch.batch_norm_elemt(part, weight, bias, mean, inverse_std, eps, out=out)
        statistics += [mean, inverse_std]
    return y, (x, weight, num_values, *statistics)


_NHWC = {4: torch.channels_last, 5: torch.channels_last_3d}


def _dense(x: Tensor) -> Tensor:
    """Row-major or NHWC memory, which are what the kernels take."""
    layout = _NHWC.get(x.dim())
    return x if layout is not None and x.is_contiguous(memory_format=layout) else x.contiguous()


@lru_cache(maxsize=64)
def _counts(
    mine: int, shares: tuple[int, ...], rank: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """How many values a channel each rank has, of which this one has `mine`, in the types that the two kernels take."""
    counts = torch.tensor([mine * share // shares[rank] for share in shares], dtype=dtype).to(device)
    return counts, counts.to(torch.int32)
