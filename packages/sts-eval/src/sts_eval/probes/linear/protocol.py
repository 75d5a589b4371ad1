"""The linear evaluation protocols as values: MoCo's, BYOL's, and a fast one for daily work."""

import math
from dataclasses import dataclass
from typing import Any, Literal

from sts_core import ConfigError
from sts_core.fields import free

Solver = Literal["sgd", "lbfgs", "ridge"]
ProbeSchedule = Literal["step", "cosine"]


@dataclass(frozen=True, kw_only=True)
class LinearProbeConfig:
    """How a linear classifier is trained on frozen features; the defaults are MoCo's, without its augmentation."""

    solver: Solver = "sgd"
    """SGD as in the papers, or a fast exact one: L-BFGS on softmax regression, or ridge regression on ±1 targets."""
    learning_rates: tuple[float, ...] = (30.0,)  # MoCo, main_lincls.py, at batch size 256
    """One classifier per learning rate is trained, all of them in one pass over the features (SGD only)."""
    regularisations: tuple[float, ...] = free((1e-5, 1e-4, 1e-3, 1e-2, 1e-1))
    """Weights λ of the squared norm, one classifier each: mean loss + λ/2·‖W‖² (L-BFGS and ridge only)."""
    epochs: int = 100  # MoCo, main_lincls.py
    """Passes over the training data (SGD only)."""
    batch_size: int = 256  # MoCo, main_lincls.py
    """Images per step, over all processes together."""
    momentum: float = 0.9
    """Momentum of SGD."""
    nesterov: bool = False
    """Nesterov's form of it (DeepMind's BYOL has it, the code behind the paper does not)."""
    weight_decay: float = 0.0
    """L2 penalty inside SGD; both protocols have none."""
    schedule: ProbeSchedule = "step"
    """Learning rate times `gamma` at each milestone, or half a cosine down to 0, by step."""
    milestones: tuple[int, ...] = (60, 80)  # MoCo, main_lincls.py
    """Epochs at which the step schedule drops."""
    gamma: float = 0.1
    """Factor of each drop."""
    batch_norm: bool = False
    """Whether a BatchNorm1d follows the linear layer, as in the code behind the paper's BYOL rows."""
    augment: bool = False
    """Random resized crop and flip of the training images: nothing is cached, the backbone runs in every epoch."""
    evaluate_every_epochs: int = free(1)
    """Epochs between evaluations; `best` is the best of them."""
    held_out_fraction: float = 0.0
    """Part of the training data kept back to choose among several classifiers; 0 chooses on the test data, and says so.

    L-BFGS and ridge fit the one chosen again to all training data.
    """
    allow_missing_classes: bool = free(False)
    """Accept training or test data in which some class has no image."""
    seed: int = free(0)
    """Key of the initial weights, the order of the data, the held-out part and the augmentation."""

    def __post_init__(self) -> None:
        for name in ("learning_rates", "regularisations", "milestones"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        self._check_choices()
        self._check_numbers()

    def _check_choices(self) -> None:
        if self.solver not in ("sgd", "lbfgs", "ridge") or self.schedule not in ("step", "cosine"):
            got = f"{self.solver!r} and {self.schedule!r}"
            raise ConfigError(
                f"solver must be sgd, lbfgs or ridge and schedule step or cosine, got {got}",
                fields=("solver", "schedule"),
            )
        if self.solver != "sgd" and (self.augment or self.batch_norm):
            raise ConfigError(
                f"augment and batch_norm belong to SGD, got solver {self.solver}: choose sgd",
                fields=("augment", "batch_norm", "solver"),
            )

    def _check_numbers(self) -> None:
        if not self.settings or not all(math.isfinite(value) and value > 0 for value in self.settings):
            raise ConfigError(
                f"the grid needs one or more positive numbers, got {self.settings}: pass e.g. (0.1, 1.0)",
                fields=("learning_rates" if self.solver == "sgd" else "regularisations",),
            )
        if not all(1 <= value < math.inf for value in (self.epochs, self.batch_size, self.evaluate_every_epochs)):
            got = f"{self.epochs}, {self.batch_size}, {self.evaluate_every_epochs}"
            raise ConfigError(
                f"epochs, batch_size and evaluate_every_epochs must be finite and at least 1, got {got}",
                fields=("epochs", "batch_size", "evaluate_every_epochs"),
            )
        if not 0.0 <= self.held_out_fraction < 1.0 or not 0.0 <= self.momentum < 1.0:
            got = f"{self.held_out_fraction} and {self.momentum}"
            raise ConfigError(
                f"held_out_fraction and momentum must be in [0, 1), got {got}",
                fields=("held_out_fraction", "momentum"),
            )
        if not all(0 <= value < math.inf for value in (self.weight_decay, self.gamma, *self.milestones)):
            got = f"{self.weight_decay}, {self.gamma}, {self.milestones}"
            raise ConfigError(
                f"weight_decay, gamma and milestones must be finite and at least 0, got {got}",
                fields=("weight_decay", "gamma", "milestones"),
            )
        if not isinstance(self.seed, int) or not 0 <= self.seed < 2**64:
            raise ConfigError(f"seed must be an integer in [0, 2**64), got {self.seed!r}", fields=("seed",))

    @property
    def settings(self) -> tuple[float, ...]:
        """The grid in use: learning rates or regularisations, by solver."""
        return self.learning_rates if self.solver == "sgd" else self.regularisations

    def rate_factor(self, step: int, steps_per_epoch: int) -> float:
        """What the base learning rate is multiplied with at `step`.

        step:    gamma^(number of milestones passed)
        cosine:  (1 + cos(π·step / total)) / 2
        """
        if self.schedule == "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * step / (self.epochs * steps_per_epoch)))
        return self.gamma ** sum(step // steps_per_epoch >= milestone for milestone in self.milestones)


def moco_protocol(*, augment: bool = True, **changes: Any) -> LinearProbeConfig:
    """MoCo's linear evaluation: SGD, lr 30, 100 epochs, × 0.1 at 60 and 80, no weight decay, plain linear layer.

    As published it augments; `augment=False` trains on cached features.
    """
    return LinearProbeConfig(augment=augment, **changes)


def byol_protocol(*, augment: bool = True, batch_norm: bool = True, **changes: Any) -> LinearProbeConfig:
    """The paper's linear evaluation of BYOL: SGD, lr 0.2, 80 epochs, cosine, linear layer with BatchNorm1d behind.

    `batch_norm=False` is the plain linear layer of BYOL's own authors. The released code normalises the 32 images of
    each GPU by themselves and drops the last, smaller batch; here all 256 are normalised together and none is dropped.
    """
    # Spatial Ensemble's released evaluation: lr .2, 80 epochs, every 10 epochs evaluated and the best kept.
    values = {"learning_rates": (0.2,), "epochs": 80, "schedule": "cosine", "evaluate_every_epochs": 10}
    return LinearProbeConfig(augment=augment, batch_norm=batch_norm, **{**values, **changes})


def fast_protocol(**changes: Any) -> LinearProbeConfig:
    """Softmax regression to its optimum by L-BFGS, over a path of regularisations: seconds where SGD takes minutes.

    The regularisation is chosen on a tenth of the training data, then fitted again to all of it.
    """
    return LinearProbeConfig(**{"solver": "lbfgs", "held_out_fraction": 0.1, **changes})
