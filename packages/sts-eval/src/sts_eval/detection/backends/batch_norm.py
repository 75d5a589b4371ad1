"""Batch norm with statistics over all workers, on any device, for workers whose images differ in size."""

import torch
from torch import nn

from sts_core.distributed import differentiable_sum, is_parallel, world_size


class CrossRankBatchNorm2d(nn.BatchNorm2d):
    """Batch norm over the batches of all workers, each worker with the same weight.

        μ = (1/R) Σ_r mean(x_r),   σ² = (1/R) Σ_r mean(x_r²) − μ²

    Equal weights are the recipe's (MoCo's "naiveSyncBN"): in detection the workers' images differ in size, and a large
    image shall not count more. With one worker, and in evaluation, this is `torch.nn.BatchNorm2d` to the bit.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalise [N, C, H, W]."""
        if not self.training or not is_parallel():
            return super().forward(input)
        mean, variance, count = self._statistics(input.float())
        self._update_running(mean.detach(), variance.detach(), count)
        scale = self.weight * torch.rsqrt(variance + self.eps)
        shift = self.bias - mean * scale
        return input * scale.to(input.dtype)[:, None, None] + shift.to(input.dtype)[:, None, None]

    def _statistics(self, input: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        count = input.new_tensor([input.numel() / input.shape[1]])
        local = torch.cat([input.mean(dim=(0, 2, 3)), (input * input).mean(dim=(0, 2, 3)), count])
        total = differentiable_sum(local)
        mean, square = (total[:-1] / world_size()).view(2, self.num_features)
        return mean, square - mean * mean, total[-1].detach()

    def _update_running(self, mean: torch.Tensor, variance: torch.Tensor, count: torch.Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        # The unbiased variance, as with one worker (detectron2's is biased with several); precise statistics follow.
        unbiased = variance * (count / (count - 1).clamp(min=1))
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(unbiased, self.momentum)
        self.num_batches_tracked.add_(1)
