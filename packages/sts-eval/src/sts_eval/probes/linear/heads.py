"""Many linear classifiers of the same features, trained by SGD side by side as one matrix product."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sts_core import distributed
from sts_eval.probes.linear.protocol import LinearProbeConfig

BATCH_NORM_MOMENTUM = 0.1  # torch's default, as in the code behind the paper
EPSILON = 1e-5


class ParallelHeads:
    """G classifiers with C classes each, of features [B, D].

    logits[b, g, c] = w[g, c] · x[b] + bias[g, c],   optionally batch-normalised per (g, c)

    Classifier g has learning rate g. The loss is the sum over g of the mean cross entropy, so that each classifier
    gets exactly the gradient that it would get alone: the grid costs one product with a wider matrix, and one that
    diverges harms no other. With several processes each holds a share of the batch; gradients and batch statistics
    are summed, so that the result does not depend on how many there are.
    """

    def __init__(self, config: LinearProbeConfig, num_features: int, num_classes: int, device: torch.device) -> None:
        self.config = config
        self.num_heads, self.num_classes = len(config.settings), num_classes
        width = self.num_heads * num_classes
        generator = torch.Generator().manual_seed(config.seed)
        one = 0.01 * torch.randn(num_classes, num_features, generator=generator)  # MoCo, main_lincls.py: N(0, 0.01²)
        self.parameters = {"weight": one.repeat(self.num_heads, 1), "bias": torch.zeros(width)}
        self.statistics: dict[str, Tensor] = {}
        if config.batch_norm:
            self.parameters |= {"scale": torch.ones(width), "shift": torch.zeros(width)}
            self.statistics = {"mean": torch.zeros(width, device=device), "variance": torch.ones(width, device=device)}
        self.parameters = {k: v.to(device).requires_grad_() for k, v in self.parameters.items()}
        self.velocities = {k: torch.zeros_like(v) for k, v in self.parameters.items()}
        rates = torch.tensor(config.settings, device=device)
        self.rates = rates.repeat_interleave(num_classes)

    def _normalise(self, logits: Tensor, count: int, training: bool) -> Tensor:
        """Batch norm of [B, G·C] with statistics over the whole batch, all processes' shares together."""
        mean, variance = self.statistics["mean"], self.statistics["variance"]
        if training:
            mean = distributed.differentiable_sum(logits.sum(0)) / count
            variance = distributed.differentiable_sum((logits - mean).square().sum(0)) / count
            unbiased = variance.detach() * (count / max(count - 1, 1))
            self.statistics["mean"].lerp_(mean.detach(), BATCH_NORM_MOMENTUM)
            self.statistics["variance"].lerp_(unbiased, BATCH_NORM_MOMENTUM)
        normal = (logits - mean) * (variance + EPSILON).rsqrt()
        return normal * self.parameters["scale"] + self.parameters["shift"]

    def __call__(self, features: Tensor, *, training_count: int | None = None) -> Tensor:
        """Logits [B, G, C]; `training_count`, the size of the whole batch, makes batch norm use its statistics."""
        logits = F.linear(features, self.parameters["weight"], self.parameters["bias"])
        if self.statistics:
            logits = self._normalise(logits, training_count or 0, training_count is not None)
        return logits.view(len(features), self.num_heads, self.num_classes)

    def step(self, features: Tensor, labels: Tensor, *, count: int, rate_factor: float) -> None:
        """One step of SGD on this process's share [B, D] of a batch of `count` samples.

        v ← μ·v + g,   w ← w − lr·v   (Nesterov: w ← w − lr·(g + μ·v))
        """
        logits = self(features, training_count=count)
        repeated = labels[:, None].expand(-1, self.num_heads)
        loss = F.cross_entropy(logits.flatten(0, 1), repeated.flatten(), reduction="sum") / count
        gradients = torch.autograd.grad(loss, list(self.parameters.values()))
        with torch.no_grad():
            for name, gradient in zip(self.parameters, gradients, strict=True):
                self._update_(name, distributed.sum_over_ranks_(gradient), rate_factor)

    def _update_(self, name: str, gradient: Tensor, rate_factor: float) -> None:
        parameter, velocity = self.parameters[name], self.velocities[name]
        if self.config.weight_decay:
            gradient = gradient.add(parameter, alpha=self.config.weight_decay)
        velocity.mul_(self.config.momentum).add_(gradient)
        move = gradient.add(velocity, alpha=self.config.momentum) if self.config.nesterov else velocity
        rates = self.rates if parameter.ndim == 1 else self.rates[:, None]
        parameter.addcmul_(move, rates, value=-rate_factor)

    @torch.no_grad()
    def assign_(self, solutions: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Take the weights [C, D] and biases [C] that a solver found, one pair per head."""
        self.parameters["weight"].copy_(torch.cat([weight for weight, _ in solutions]))
        self.parameters["bias"].copy_(torch.cat([bias for _, bias in solutions]))

    def diverged(self) -> list[bool]:
        """For each head whether its weights are no longer finite."""
        finite = self.parameters["weight"].detach().isfinite().all(1).view(self.num_heads, self.num_classes).all(1)
        return [not bool(value) for value in finite]

    @torch.no_grad()
    def classifier(self, head: int) -> nn.Module:
        """One head as a module from features to logits: a linear layer, with its batch norm in evaluation mode."""
        rows = slice(head * self.num_classes, (head + 1) * self.num_classes)
        weight, bias = (self.parameters[name].detach()[rows] for name in ("weight", "bias"))
        linear = nn.Linear(weight.shape[1], self.num_classes, device=weight.device)
        linear.weight.copy_(weight)
        linear.bias.copy_(bias)
        if not self.statistics:
            return linear.requires_grad_(False).eval()
        norm = nn.BatchNorm1d(self.num_classes, EPSILON, device=weight.device)
        for target, source in ((norm.weight, self.parameters["scale"]), (norm.bias, self.parameters["shift"])):
            target.copy_(source[rows])
        for buffer, source in (
            (norm.running_mean, self.statistics["mean"]),
            (norm.running_var, self.statistics["variance"]),
        ):
            assert buffer is not None
            buffer.copy_(source[rows])
        return nn.Sequential(linear, norm).requires_grad_(False).eval()

    def state_dict(self) -> dict[str, Tensor]:
        """All tensors that training changes."""
        groups = {"parameters": self.parameters, "velocities": self.velocities, "statistics": self.statistics}
        return {f"{group}.{k}": v.detach().clone() for group, tensors in groups.items() for k, v in tensors.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take up training where `state_dict` was made."""
        groups = {"parameters": self.parameters, "velocities": self.velocities, "statistics": self.statistics}
        with torch.no_grad():
            for key, value in state.items():
                group, name = key.split(".", 1)
                groups[group][name].copy_(value)
