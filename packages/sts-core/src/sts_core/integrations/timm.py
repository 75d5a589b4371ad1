"""timm's train script: a teacher in place of `ModelEmaV3`."""

from torch import Tensor, nn

from sts_core.config import SmoothingConfig
from sts_core.errors import PairingError
from sts_core.pairing import make_teacher, unwrap
from sts_core.schedules import Schedule
from sts_core.smoother import Smoother


class ModelSmoother(nn.Module):
    """What timm's loop calls `model_ema`: a `module`, and `update(model, step=...)` after every optimizer step.

        model_ema = ModelSmoother(model, spatial_temporal_smoothing(0.99, 0.7), seed=0)

    Draws go by the step that the train script passes, so a resumed training carries on with the same ones.
    """

    def __init__(
        self, model: nn.Module, config: SmoothingConfig, *, seed: int = 0, momentum: Schedule | None = None
    ) -> None:
        super().__init__()
        self.module = make_teacher(model)
        self.momentum = momentum
        self._smoother = [Smoother(student=model, teacher=self.module, config=config, seed=seed)]  # in no state dict

    def update(self, model: nn.Module, step: int | None = None) -> None:
        """Move the teacher; `step` counts optimizer steps from 1, as the train script does."""
        (smoother,) = self._smoother
        if unwrap(model) is not unwrap(smoother.student):
            raise PairingError("a teacher has one student, but this one is given another than it was made of")
        if step is not None:
            smoother.step = step - 1
        smoother.update(momentum=None if self.momentum is None else self.momentum(smoother.step))

    def set(self, model: nn.Module) -> None:
        """Make the teacher a copy of the model."""
        self.module.load_state_dict(make_teacher(model).state_dict())

    def forward(self, *args: object, **kwargs: object) -> Tensor:
        return self.module(*args, **kwargs)  # type: ignore[no-any-return]
