"""Batch norm over the samples that a recipe means, however many processes share the batch.

    CrossRankBatchNorm   statistics of the global batch
    GroupBatchNorm       statistics of each of G groups of the global batch (MoCo: a group is one GPU of the recipe)

Both hold the parameters and buffers of `nn.BatchNorm*d` under the same names. After a step every rank has the same
buffers of the first, and of the second once `average_running_statistics` has made them so.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sts_core import ConfigError
from sts_core.distributed import average_over_ranks_, world_size
from sts_methods.networks.normalise import Normalise, NormaliseOnDevice, normalised_on_device


class _BatchNormOfRanks(_BatchNorm):
    """What the two batch norms share: inputs of any shape [N, C, ...], running statistics, timm's activation."""

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ConfigError(f"batch norm needs [N, C, ...], got {tuple(input.shape)}: pass a batch")

    def _next_momenta(self, num: int) -> list[float]:
        """Count `num` batches; the weights of their statistics, 1/count when the running ones are plain means."""
        if self.num_batches_tracked is None:
            return [0.0] * num
        apart = _apart.get()
        if self.momentum is not None:
            if apart is None:
                self.num_batches_tracked.add_(num)
            else:
                apart.counted[self.num_batches_tracked] += num
            return [self.momentum] * num
        self.num_batches_tracked.add_(num)
        return [1.0 / (float(self.num_batches_tracked) - after) for after in reversed(range(num))]

    @torch.no_grad()
    def _update_running_statistics(self, means: Iterable[Tensor], variances: Sequence[Tensor]) -> None:
        """r ← (1 − momentum)·r + momentum·statistic for each batch, with the unbiased variance (torch's convention)."""
        if self.running_mean is None or self.running_var is None:
            return
        for mean, variance, momentum in zip(means, variances, self._next_momenta(len(variances)), strict=True):
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
            self.running_var.lerp_(variance.to(self.running_var.dtype), momentum)

    def _check_count(self, x: Tensor, num_groups: int) -> None:
        """In train mode a group of one value a channel has no variance."""
        self._check_input_dim(x)
        if self.training and x.numel() <= x.shape[1] * num_groups:
            raise ConfigError(
                f"batch norm needs at least two values a channel in each of its groups, got {list(x.shape)} for "
                f"{num_groups} group{'s' if num_groups > 1 else ''} on this rank: raise global_batch_size, or lower "
                f"accumulation or bn_groups"
            )

    def _activated(self, y: Tensor) -> Tensor:
        """timm's BatchNormAct2d drops and activates after the norm; a layer that replaces one has these modules."""
        for after in self._modules.values():
            y = y if after is None else after(y)
        return y


@dataclass
class _Apart:
    """That several batches of equal size lie one after the other in an input."""

    num: int
    counted: Counter[Tensor] = field(default_factory=Counter)
    """By how much counters of batches are to grow: all together, not a kernel for each layer."""


_apart: ContextVar[_Apart | None] = ContextVar("apart", default=None)


class CrossRankBatchNorm(_BatchNormOfRanks):
    """Batch norm whose mean and variance cover the batches of all ranks: N workers equal one.

    On an accelerator this runs the kernels of torch's SyncBatchNorm, for ranks with equally many values or
    in the ratios of `shared_as`. Those refuse CPU tensors, which go through `Normalise`, the same with any backend.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or world_size() == 1:
            self._check_count(x, 1)
            y = super().forward(x)
        elif x.device.type == "cpu":
            y, means, variances, count = Normalise.apply(x, self.weight, self.bias, self.eps, _num_parts())
            self._update_running_statistics(means, variances * (count / (count - 1)))
        else:
            y = self._native(x)
        return self._activated(y)

    def _native(self, x: Tensor) -> Tensor:
        statistics = self.running_mean, self.running_var, self._next_momenta(_num_parts())
        if not torch.is_grad_enabled():  # a teacher, which has no use for an entry in the graph
            return normalised_on_device(x, self.weight, self.bias, *statistics, self.eps)[0]
        return NormaliseOnDevice.apply(x, self.weight, self.bias, *statistics, self.eps)  # type: ignore[no-any-return]


def each_apart(network: nn.Module, batches: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """`network(batch)` for each of several batches of one size, every one with batch norm statistics of its own.

    Several ranks send all of them through the network at once: their batch norms wait for one exchange, not for one a
    batch, and such waits are most of a small network's step (BYOL on digits, two ranks on two cores: 146 ms, not 220).
    """
    if world_size() == 1:
        return tuple(network(batch) for batch in batches)
    apart = _Apart(len(batches))
    token = _apart.set(apart)
    try:
        made = cast(Tensor, network(torch.cat(list(batches)))).chunk(len(batches))
    finally:
        _apart.reset(token)
    if apart.counted:
        torch._foreach_add_(list(apart.counted), list(apart.counted.values()))
    return made


def _num_parts() -> int:
    """How many batches the input is made of: one, but in `each_apart`."""
    apart = _apart.get()
    return 1 if apart is None else apart.num


class GroupBatchNorm(_BatchNormOfRanks):
    """Batch norm in which every group of samples has its own statistics, as on a machine with one GPU per group.

    The global batch is cut into `num_groups` contiguous groups; a rank holds num_groups / world size of them, so one
    process with 8 groups computes what 8 processes with one group each compute. Running statistics follow the mean
    over the rank's groups; `average_running_statistics` extends it over ranks, for all layers together.
    """

    def __init__(self, num_features: int, *args: Any, num_groups: int, **kwargs: Any) -> None:
        super().__init__(num_features, *args, **kwargs)
        self.num_groups = num_groups

    def forward(self, x: Tensor) -> Tensor:
        num_local = groups_per_rank(self.num_groups) if self.training else 1
        self._check_count(x, num_local)
        y = super().forward(x) if num_local == 1 else self._normalise_groups(x, num_local)
        return self._activated(y)

    def _normalise_groups(self, x: Tensor, num_local: int) -> Tensor:
        if x.shape[0] % num_local:
            raise ConfigError(
                f"a batch must split into equal batch norm groups, got {x.shape[0]} samples for {num_local} groups on "
                "this rank: change global_batch_size or bn_groups"
            )
        # With momentum 1 batch_norm leaves the group's own mean and unbiased variance in the buffers it is given.
        dtype = torch.promote_types(x.dtype, torch.float32)
        means, variances = torch.zeros(2, num_local, self.num_features, dtype=dtype, device=x.device)
        groups = [
            F.batch_norm(group, means[i], variances[i], self.weight, self.bias, True, 1.0, self.eps)
            for i, group in enumerate(x.chunk(num_local))
        ]
        self._update_running_statistics([means.mean(0)], [variances.mean(0)])
        return torch.cat(groups)


def groups_per_rank(num_groups: int) -> int:
    """How many of the global batch's groups one rank holds."""
    if num_groups % world_size():
        raise ConfigError(
            f"bn_groups must be a multiple of the number of workers, got {num_groups} groups for {world_size()} "
            f"workers: use {world_size()} groups, or a number of workers that divides {num_groups}"
        )
    return num_groups // world_size()


@torch.no_grad()
def average_running_statistics(*networks: nn.Module) -> None:
    """Make the running statistics of all group batch norms the mean over ranks, in one collective."""
    if world_size() == 1:
        return
    layers = [m for network in networks for m in network.modules() if isinstance(m, GroupBatchNorm) and m.training]
    buffers = [buffer for m in layers for buffer in (m.running_mean, m.running_var) if buffer is not None]
    # `.data`, because autograd saved these buffers and would refuse the change, although the backward pass of a layer
    # in train mode reads nothing but the batch's own statistics.
    average_over_ranks_([buffer.data for buffer in buffers])


def use_cross_rank_batch_norm(network: nn.Module) -> nn.Module:
    """Replace every batch norm of `network` by a `CrossRankBatchNorm` that shares its parameters and buffers."""
    return _replaced(network, CrossRankBatchNorm)


def use_group_batch_norm(network: nn.Module, *, num_groups: int) -> nn.Module:
    """Replace every batch norm of `network` by a `GroupBatchNorm` that shares its parameters and buffers."""
    return _replaced(network, lambda *args, **kwargs: GroupBatchNorm(*args, num_groups=num_groups, **kwargs))


def _replaced(module: nn.Module, make: Callable[..., _BatchNormOfRanks]) -> nn.Module:
    if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
        return _adopted(module, make)
    for name, child in module.named_children():
        replacement = _replaced(child, make)
        if replacement is not child:
            module.add_module(name, replacement)
    return module


def _adopted(old: _BatchNorm, make: Callable[..., _BatchNormOfRanks]) -> nn.Module:
    new = make(old.num_features, old.eps, old.momentum, old.affine, old.track_running_stats)
    new.weight, new.bias = old.weight, old.bias
    new.running_mean, new.running_var = old.running_mean, old.running_var
    new.num_batches_tracked = old.num_batches_tracked
    for name, child in old.named_children():  # of timm's BatchNormAct2d
        new.add_module(name, child)
    return new.train(old.training)
