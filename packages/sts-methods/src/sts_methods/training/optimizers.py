"""The optimizers of the references: SGD and LARS (and AdamW for vision transformers), with weight-decay exclusions."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer

from sts_core import ConfigError
from sts_core.fields import added
from sts_methods.training.learning_rate import RateSchedule, cosine, learning_rate_factor

OptimizerName = Literal["sgd", "lars", "adamw"]
_NOT_NEGATIVE = (
    "lr", "weight_decay", "warmup_epochs", "warmup_start", "trust_coefficient", "momentum", "decay", "final_lr",
    "final_weight_decay",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """How the student learns. The defaults are those of the paper's BYOL code, but for its warm-up of 10 epochs."""

    name: OptimizerName = "sgd"
    """sgd, lars (large batches) or adamw (vision transformers)."""
    lr: float = 0.05  # STS repo, sts_exp.py
    """Base learning rate: per 256 images of the global batch if `scale_lr`, else as it is."""
    scale_lr: bool = True
    """Multiply `lr` by global_batch_size / 256."""
    momentum: float = 0.9
    """Momentum of sgd and lars; beta 1 of adamw."""
    nesterov: bool = False
    """Nesterov momentum (FixMatch); sgd only."""
    weight_decay: float = 1e-4
    """L2 penalty (sgd, lars) or decoupled decay (adamw)."""
    exclude_norm_and_bias: bool = False
    """Neither decay nor, in lars, rescale the parameters of normalisation layers and biases."""
    trust_coefficient: float = 1e-3  # DeepMind byol, configs/byol.py (eta)
    """LARS: learning rate of a layer relative to |weight| / |gradient|."""
    schedule: RateSchedule = "cosine"
    """cosine to 0, cosine_7_16 (FixMatch), step (times `decay` at each milestone) or constant."""
    warmup_epochs: float = 0.0
    """Linear warm-up before the schedule starts."""
    warmup_start: float = 0.0
    """Fraction of the learning rate at which the warm-up begins."""
    by_epoch: bool = False
    """Move the schedule once per epoch instead of once per step (MoCo)."""
    milestones: tuple[float, ...] = ()
    """Epochs at which the step schedule decays."""
    decay: float = 0.1
    """Factor of the step schedule."""
    clip_gradient_norm: float | None = None
    """Rescale the gradients if their norm, over all parameters together, exceeds this value."""
    clip_each_gradient_norm: float | None = added(None)
    """Rescale the gradient of each parameter whose norm exceeds this value (DINO)."""
    final_lr: float = added(0.0)
    """Where the cosine of the learning rate ends (DINO); not scaled."""
    final_weight_decay: float | None = added(None)
    """Where the weight decay ends, which moves there along a cosine from the first step on (DINO); none keeps it."""

    def __post_init__(self) -> None:
        for name, choices in (("name", OptimizerName), ("schedule", RateSchedule)):
            if getattr(self, name) not in get_args(choices):
                known = ", ".join(get_args(choices))
                raise ConfigError(
                    f"optimizer.{name} must be one of {known}, got {getattr(self, name)!r}", fields=(name,)
                )
        for name in _NOT_NEGATIVE:
            value = getattr(self, name)
            if value is not None and not 0.0 <= value < math.inf:
                raise ConfigError(
                    f"optimizer.{name} must be zero or positive and finite, got {value!r}", fields=(name,)
                )
        if self.nesterov and (self.name != "sgd" or self.momentum == 0.0):
            raise ConfigError(
                f"optimizer.nesterov needs sgd with momentum, got {self.name} with {self.momentum}: switch it off",
                fields=("nesterov", "name", "momentum"),
            )
        if self.schedule == "step" and not self.milestones:
            raise ConfigError(
                "optimizer.schedule 'step' needs milestones, got none: name the epochs of the decays",
                fields=("schedule", "milestones"),
            )
        if self.final_lr and self.schedule != "cosine":
            raise ConfigError(
                f"optimizer.final_lr needs schedule cosine, got {self.schedule}: set it to 0",
                fields=("final_lr", "schedule"),
            )
        for name in ("clip_gradient_norm", "clip_each_gradient_norm"):
            value = getattr(self, name)
            if value is not None and not value > 0.0:
                raise ConfigError(
                    f"optimizer.{name} must be positive, got {value!r}: pass None for none", fields=(name,)
                )


def learning_rate(
    config: OptimizerConfig, step: int, *, total_steps: int, steps_per_epoch: int, global_batch_size: int
) -> float:
    """lr · (batch / 256 if scaled) · schedule(step), or, after the warm-up, on the way from there to `final_lr`."""
    base = config.lr * (global_batch_size / 256 if config.scale_lr else 1.0)
    warmup_steps = config.warmup_epochs * steps_per_epoch
    final = config.final_lr if step >= warmup_steps else 0.0
    return final + (base - final) * learning_rate_factor(
        config.schedule,
        step,
        total_steps=total_steps,
        warmup_steps=warmup_steps,
        warmup_start=config.warmup_start,
        milestones=[epoch * steps_per_epoch for epoch in config.milestones],
        decay=config.decay,
        steps_per_epoch=steps_per_epoch if config.by_epoch else None,
    )


def set_learning_rate_(optimizer: Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def weight_decay(config: OptimizerConfig, step: int, *, total_steps: int) -> float:
    """λ' + (λ − λ')·½(1 + cos(πk/K)), from λ at the first step to `final_weight_decay` λ'; without one, λ."""
    start, final = config.weight_decay, config.final_weight_decay
    return start if final is None else final + (start - final) * cosine(step, total_steps)


def set_weight_decay_(optimizer: Optimizer, decay: float) -> None:
    """For all parameters but those that have none."""
    for group in optimizer.param_groups:
        if not group["exempt"]:
            group["weight_decay"] = decay


@torch.no_grad()
def clip_gradients_(parameters: Iterable[Tensor], config: OptimizerConfig) -> None:
    """Rescale gradients that are too long, together or each by itself: g ← g · min(1, c / (|g| + 1e-6))."""
    found = [parameter for parameter in parameters if parameter.grad is not None]
    if config.clip_gradient_norm is not None:
        nn.utils.clip_grad_norm_(found, config.clip_gradient_norm)
    if config.clip_each_gradient_norm is not None and found:
        gradients = [cast(Tensor, parameter.grad) for parameter in found]
        norms = torch.stack(torch._foreach_norm(gradients))
        factors = (config.clip_each_gradient_norm / (norms + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(gradients, list(factors.unbind()))


def is_norm_or_bias(module: nn.Module, name: str) -> bool:
    """Whether `name` is a bias or belongs to a normalisation layer (of torch, timm, or named so)."""
    norms = (_NormBase, nn.LayerNorm, nn.GroupNorm)
    return name == "bias" or isinstance(module, norms) or "norm" in type(module).__name__.lower()


def parameter_groups(module: nn.Module, config: OptimizerConfig) -> list[dict[str, Any]]:
    """The trainable parameters, those without decay in a group of their own; tied ones once."""
    decayed: list[Tensor] = []
    excluded: list[Tensor] = []
    seen: set[Tensor] = set()
    for owner in module.modules():
        for name, parameter in owner.named_parameters(recurse=False):
            if not parameter.requires_grad or parameter in seen:
                continue
            seen.add(parameter)
            exempt = config.exclude_norm_and_bias and is_norm_or_bias(owner, name)
            (excluded if exempt else decayed).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": config.weight_decay, "exempt": False},
        {"params": excluded, "weight_decay": 0.0, "exempt": True},
    ]
    return [group for group in groups if group["params"]]


def build_optimizer(module: nn.Module, config: OptimizerConfig) -> Optimizer:
    """The optimizer of every parameter of `module` that requires a gradient (the teacher's do not)."""
    groups = parameter_groups(module, config)
    if not groups:
        raise ConfigError("nothing to train: no parameter of the method requires a gradient; unfreeze the student")
    if config.name == "lars":
        return Lars(groups, lr=config.lr, momentum=config.momentum, trust_coefficient=config.trust_coefficient)
    # On a CPU the fused kernel takes 20 ms for 25.6 M weights where the loop takes 49 and foreach 75. Elsewhere torch
    # chooses: False would rule out foreach, too.
    fusible = all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for g in groups for p in g["params"])
    fused = True if fusible else None
    if config.name == "adamw":
        return torch.optim.AdamW(groups, lr=config.lr, betas=(config.momentum, 0.999), fused=fused)
    return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, nesterov=config.nesterov, fused=fused)


@torch.no_grad()
def nonfinite(parameters: Iterable[Tensor], device: torch.device) -> Tensor:
    """A float on the device: 1 if a gradient has a NaN or an infinity, else 0. Nobody waits for it."""
    found, one = torch.zeros((), device=device), torch.ones((), device=device)
    gradients: dict[torch.dtype, list[Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            gradients.setdefault(parameter.grad.dtype, []).append(parameter.grad)
    for alike in gradients.values():  # multiplied by 1, which changes no bit
        torch._amp_foreach_non_finite_check_and_unscale_(alike, found, one)
    return found


def step_unless_(skip: Tensor, optimizer: Any) -> None:
    """A step of the optimizer that changes nothing if `skip` holds 1, which fused kernels read where it lies."""
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        if not skip:
            optimizer.step()
        return
    if isinstance(optimizer, torch.optim.SGD):
        _start_momenta_(optimizer)
    optimizer.grad_scale, optimizer.found_inf = None, skip
    optimizer.step()
    del optimizer.grad_scale, optimizer.found_inf


def _start_momenta_(optimizer: torch.optim.SGD) -> None:
    """At zero: torch's fused SGD leaves those of a skipped first step unwritten, and wants all or none to be there."""
    for group in optimizer.param_groups:
        for parameter in group["params"] if group["momentum"] else ():
            if parameter.grad is not None and parameter not in optimizer.state:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


class Lars(Optimizer):
    """SGD whose step is rescaled per tensor, with g ← g + λθ first:

        g ← g · η|θ| / |g|      (1 where either norm is 0, and for exempt tensors)
        v ← μv + g
        θ ← θ - lr · v

    DeepMind's order (byol, utils/optimizers.py): decay, trust ratio, momentum, learning rate. Like torch's fused
    optimizers it changes nothing if its attribute `found_inf` holds 1.
    """

    _step_supports_amp_scaling = True
    found_inf: Tensor | None = None

    def __init__(
        self, params: Iterable[dict[str, Any]], *, lr: float, momentum: float = 0.9, trust_coefficient: float = 1e-3
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": 0.0,
            "exempt": False,
            "trust_coefficient": trust_coefficient,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._step_group(group)
        return loss

    def _step_group(self, group: dict[str, Any]) -> None:
        parameters = [p for p in group["params"] if p.grad is not None]
        if not parameters:
            return
        updates = list(torch._foreach_add([p.grad for p in parameters], parameters, alpha=group["weight_decay"]))
        if not group["exempt"]:
            ratios = trust_ratios(parameters, updates, group["trust_coefficient"])
            torch._foreach_mul_(updates, ratios)
        velocities = [self._velocity(p) for p in parameters]
        if parameters[0].device.type == "cuda":
            self._move_fused(group, parameters, updates, velocities)
        elif self.found_inf is None or not self.found_inf:
            torch._foreach_mul_(velocities, group["momentum"])
            torch._foreach_add_(velocities, updates)
            torch._foreach_add_(parameters, velocities, alpha=-group["lr"])

    def _move_fused(
        self, group: dict[str, Any], parameters: list[Tensor], updates: list[Tensor], velocities: list[Tensor]
    ) -> None:
        """The last two lines of the formula in one kernel, which reads the flag."""
        torch._fused_sgd_(
            parameters,
            updates,
            velocities,
            weight_decay=0.0,
            momentum=group["momentum"],
            lr=group["lr"],
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
            grad_scale=None,
            found_inf=self.found_inf,
        )

    def _velocity(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        velocity: Tensor = state["momentum_buffer"]
        return velocity


def trust_ratios(parameters: list[Tensor], updates: list[Tensor], coefficient: float) -> list[Tensor]:
    """η|θ| / |g| of each tensor, 1 where a norm is 0; stays on the device."""
    weights = torch.stack(torch._foreach_norm(parameters))
    gradients = torch.stack(torch._foreach_norm(updates))
    ratios = coefficient * weights / gradients
    return list(torch.where((weights > 0) & (gradients > 0), ratios, torch.ones_like(ratios)).unbind())
