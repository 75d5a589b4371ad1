"""lightly: a function in place of its `update_momentum`."""

from torch import nn

from sts_core.config import SmoothingConfig
from sts_core.errors import PairingError
from sts_core.smoother import Smoother


class MomentumUpdate:
    """Called like lightly's `update_momentum(model, model_ema, m)`, once per step for each pair of modules.

        update_momentum = MomentumUpdate(spatial_temporal_smoothing(0.99, 0.7, buffers="keep"), seed=0)
        update_momentum(self.backbone, self.backbone_momentum, m)

    `state_dict()` belongs into the checkpoint: the next draws depend on it.
    """

    def __init__(self, config: SmoothingConfig, *, seed: int = 0) -> None:
        self.config, self.seed = config, seed
        self._smoothers: list[Smoother] = []
        self._steps: list[int] = []

    def __call__(
        self, model: nn.Module, model_ema: nn.Module, m: float | None = None, *, step: int | None = None
    ) -> None:
        """Move `model_ema` one step towards `model`; m overrides the config's.

        With `step`, the number of optimizer steps so far (`self.trainer.global_step`), further calls of the same step
        do nothing, as gradient accumulation makes them, and a resumed training needs no state.
        """
        smoother = self._smoother(model, model_ema)
        if step is not None and step < smoother.step:
            return
        smoother.step = smoother.step if step is None else step
        smoother.update(momentum=m)

    def _smoother(self, model: nn.Module, model_ema: nn.Module) -> Smoother:
        for smoother in self._smoothers:
            if smoother.teacher is model_ema:
                if smoother.student is not model:
                    raise PairingError("a teacher has one student, but this one is given another than before")
                return smoother
        pair = len(self._smoothers)  # each pair draws from a seed of its own
        smoother = Smoother(student=model, teacher=model_ema, config=self.config, seed=self.seed + pair)
        smoother.step = self._steps[pair] if pair < len(self._steps) else 0
        self._smoothers.append(smoother)
        return smoother

    def state_dict(self) -> dict[str, object]:
        """The updates so far of each pair, in the order of their first calls."""
        return {"seed": self.seed, "steps": [smoother.step for smoother in self._smoothers] or self._steps}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Carry on where `state` was taken; before the first call."""
        self.seed, self._steps = int(state["seed"]), list(state["steps"])  # type: ignore[call-overload]
        self._smoothers = []
