"""Loops that know parameters as a list, without names: diffusers' and torch's own averages.

A parameter's draws go by its position where a `Smoother`'s go by its name: the same rule, other fragments.
"""

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sts_core.binding import STATE_VERSION, Binding, check_state, make_rule
from sts_core.config import SmoothingConfig
from sts_core.errors import ConfigError, PairingError, StateError
from sts_core.pairing import WIDE, NamedPair
from sts_core.schedules import Schedule


class ParameterTeacher:
    """Has the shape of diffusers' `EMAModel`: `step`, `store`, `copy_to`, `restore`, `save_pretrained`, `to`.

        ema = ParameterTeacher(unet.parameters(), spatial_temporal_smoothing(0.99, 0.7), seed=0,
                               model_cls=UNet2DModel, model_config=unet.config)
        ema.step(unet.parameters())     # after every optimizer step

    Granularity "module" needs names and is refused.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        config: SmoothingConfig,
        *,
        seed: int = 0,
        momentum: Schedule | None = None,
        model_cls: Any = None,
        model_config: Any = None,
    ) -> None:
        _refuse_modules(config)
        self.config, self.seed, self.momentum = config, seed, momentum
        self.model_cls, self.model_config = model_cls, model_config
        self.optimization_step = 0
        """Updates so far."""
        self.shadow_params = [parameter.detach().float().clone() for parameter in parameters]
        self._students: list[Tensor] = []
        self._binding: Binding | None = None
        self._stored: list[Tensor] | None = None

    @torch.no_grad()
    def step(self, parameters: Iterable[Tensor]) -> None:
        """Move the teacher one step towards these parameters, which must be those of the beginning, in their order."""
        binding = self._bound(list(parameters))
        m = None if self.momentum is None else self.momentum(self.optimization_step)
        binding.update([make_rule(self.config, self.optimization_step, self.seed, m, None)])
        self.optimization_step += 1

    def _bound(self, parameters: list[Tensor]) -> Binding:
        if self._binding is None or [*map(id, parameters)] != [*map(id, self._students)]:
            self._check(parameters)
            self._students, self._binding = parameters, Binding([_pairs(parameters, self.shadow_params)], "auto")
        return self._binding

    def _check(self, parameters: Sequence[Tensor]) -> None:
        if [p.shape for p in parameters] != [p.shape for p in self.shadow_params]:
            raise PairingError(
                f"the parameters must be the {len(self.shadow_params)} of the beginning, in their order, got "
                f"{len(parameters)} of other shapes"
            )

    @torch.no_grad()
    def copy_to(self, parameters: Iterable[Tensor]) -> None:
        """Give these parameters the teacher's values."""
        targets = list(parameters)
        self._check(targets)
        for target, value in zip(targets, self.shadow_params, strict=True):
            target.copy_(value)

    def store(self, parameters: Iterable[Tensor]) -> None:
        """Keep these parameters' values until `restore`."""
        self._stored = [parameter.detach().clone() for parameter in parameters]

    @torch.no_grad()
    def restore(self, parameters: Iterable[Tensor]) -> None:
        """Give these parameters the values that `store` kept."""
        if self._stored is None:
            raise StateError("restore() gives back what store() kept, and it has kept nothing: call store() first")
        for parameter, value in zip(parameters, self._stored, strict=True):
            parameter.copy_(value)
        self._stored = None

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "ParameterTeacher":
        """Move the teacher to a device; it stays float32, since a 16-bit one would hardly move."""
        if dtype not in (None, torch.float32, torch.float64):
            raise ConfigError(f"the teacher must stay float32, got {dtype}: convert a copy of it")
        self.shadow_params = [parameter.to(device=device, dtype=dtype) for parameter in self.shadow_params]
        self._binding = None
        return self

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed training needs: the teacher, the seed, the config and the number of updates."""
        counters = {"version": STATE_VERSION, "seed": self.seed, "step": self.optimization_step}
        return counters | {"config": asdict(self.config), "shadow_params": self.shadow_params}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Carry on where `state` was taken; refuses that of another config or of other parameters."""
        check_state(state, asdict(self.config))
        self._check(state["shadow_params"])
        self.seed, self.optimization_step = int(state["seed"]), int(state["step"])
        for mine, saved in zip(self.shadow_params, state["shadow_params"], strict=True):
            mine.copy_(saved)

    def save_pretrained(self, path: str | Path) -> None:
        """Save the teacher as a model of `model_cls`, which `model_cls.from_pretrained(path)` loads."""
        if self.model_cls is None or self.model_config is None:
            raise ConfigError("save_pretrained() needs to know the model: pass model_cls and model_config")
        model = self.model_cls.from_config(self.model_config)
        self.copy_to(model.parameters())
        model.save_pretrained(path)


def multi_avg_fn(config: SmoothingConfig, *, seed: int = 0) -> Callable[[Any, Any, Any], None]:
    """What `torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=...)` averages with; Lightning's passes it on.

    Draws go by the number of averages, which AveragedModel saves: a resumed training carries on with the same ones.
    With `use_buffers=True`, Lightning's default, statistics are smoothed like weights, and counters copied. The average
    of a bfloat16 model must be float32: `AveragedModel(model, ...).float()`.
    """
    _refuse_modules(config)

    @torch.no_grad()
    def average(averaged: Sequence[Tensor], current: Sequence[Tensor], num_averaged: Tensor | int) -> None:
        # Called for each device and dtype in an order that may change: each dtype but float32 draws from its own seed.
        dtype = averaged[0].dtype
        if not (dtype.is_floating_point or dtype.is_complex):
            torch._foreach_copy_(list(averaged), list(current))
            return
        if dtype not in WIDE:
            raise PairingError(
                f"the average must be float32, got {dtype}, in which small steps are lost: call AveragedModel's float()"
            )
        own = seed if dtype == torch.float32 else seed ^ zlib.crc32(str(dtype).encode())
        rule = make_rule(config, int(num_averaged) - 1, own, None, None)
        Binding([_pairs(current, averaged)], "auto").update([rule])

    return average


def _refuse_modules(config: SmoothingConfig) -> None:
    if config.granularity == "module":
        raise ConfigError("granularity 'module' needs the names of parameters, which this loop does not tell")


def _pairs(students: Sequence[Tensor], teachers: Sequence[Tensor]) -> list[NamedPair]:
    both = zip(students, teachers, strict=True)
    return [NamedPair(str(position), student, teacher) for position, (student, teacher) in enumerate(both)]
