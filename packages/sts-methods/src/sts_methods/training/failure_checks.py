"""What stops a run that no longer makes sense: a non-finite loss or gradient, or collapsed features."""

import json
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from sts_core import StsError
from sts_core.distributed import agree, gather_objects, rank
from sts_methods.batch import Batch

Reaction = Literal["stop", "warn"]
Outcome = Literal["applied", "overflowed", "left out"]
"""What became of a step: float16 gradients that overflowed are skipped without a word, as their scaler means to."""


class NonFiniteLossError(StsError, ArithmeticError):
    """The loss, a gradient or a weight is NaN or infinite."""


class CollapseError(StsError, RuntimeError):
    """The features carry no information any more."""


@dataclass(frozen=True)
class _Watched:
    """A step of which the host does not know yet whether the device has skipped it."""

    step: int
    skip: Tensor
    """The flag, on its way to the host."""
    arrived: torch.Event | None
    """When it is there; None if it is there at once."""
    loss: Tensor
    indices: list[Tensor]


class FailureChecks:
    """Watches gradients, losses and health metrics, saves the indices of offending batches and stops or warns.

    The device leaves an offending batch out by itself. The host only looks at the step before the one that it has
    just handed over, so that it never waits for the device to finish.
    """

    def __init__(
        self,
        folder: Path,
        *,
        on_nonfinite: Reaction,
        on_collapse: Reaction,
        least: Mapping[str, float],
        scaled: bool,
    ) -> None:
        self.folder = folder
        self.on_nonfinite: Reaction = on_nonfinite
        self.on_collapse: Reaction = on_collapse
        self.least = {name: bound for name, bound in least.items() if bound > 0.0}
        """The smallest healthy value of a metric."""
        self.scaled = scaled
        """Whether gradients are scaled, and may overflow."""
        self._collapsed = False
        self._watched: _Watched | None = None

    def watch(self, step: int, skip: Tensor, loss: Tensor, batches: Sequence[Batch]) -> None:
        """Send the flag of a step to the host; every rank calls this at every step."""
        on_gpu = skip.device.type == "cuda"
        flag = skip.to("cpu", non_blocking=on_gpu)
        arrived = torch.Event(skip.device) if on_gpu else None
        if arrived is not None:
            arrived.record()
        self._watched = _Watched(step, flag, arrived, loss, [batch.indices for batch in batches])

    def outcome(self) -> Outcome:
        """What became of the step last watched; stops or warns if a loss or gradient of any rank is not finite."""
        assert self._watched is not None, "watch comes before outcome"
        step = self._watched
        if step.arrived is not None and not step.arrived.query():
            step.arrived.synchronize()
        if not step.skip:
            return "applied"
        # Rare, and the same on all ranks, whose gradients are equal: now they may talk to each other.
        loss = step.loss.item()
        bad_loss = agree(not math.isfinite(loss), step.loss.device)
        if self.scaled and not bad_loss:
            return "overflowed"
        self._react("loss" if bad_loss else "gradients", step, loss)
        return "left out"

    def _react(self, what: str, step: _Watched, loss: float) -> None:
        path = self._save_offender("nonfinite", step.indices, step.step, {"loss": loss})
        found = (
            "the gradients must be finite, but are not"
            if what == "gradients"
            else (f"the loss must be finite, got {loss} on this rank")
        )
        message = f"{found} at step {step.step} (batch indices in {path})"
        if self.on_nonfinite == "stop":
            raise NonFiniteLossError(f"{message}: start a new run with a lower learning rate or in float32")
        warnings.warn(f"{message}: the update was left out", UserWarning, stacklevel=4)

    def check_weights(self, tensors: Iterable[tuple[str, Tensor]], step: int) -> None:
        """Raise if a tensor is not finite, so that no checkpoint holds it: gradients may overflow before the loss."""
        named = [(name, tensor) for name, tensor in tensors if tensor.is_floating_point()]
        finite = torch.isfinite(torch.stack([tensor.detach().sum(dtype=torch.float64) for _, tensor in named]))
        if not finite.all():
            name = named[int(finite.int().argmin())][0]
            raise NonFiniteLossError(
                f"all weights must be finite, but {name!r} is not at step {step}: the checkpoints before are intact, "
                f"start a new run with a lower learning rate or in float32"
            )

    def check_health(self, metrics: Mapping[str, float], batches: Sequence[Batch], step: int) -> None:
        """Stop or warn (once per episode) when a health metric, averaged over ranks, fell below its bound."""
        low = {name: metrics[name] for name, bound in self.least.items() if metrics.get(name, bound) < bound}
        if not low:
            self._collapsed = False
            return
        if self._collapsed:
            return
        self._collapsed = True
        path = self._save_offender("collapse", [batch.indices for batch in batches], step, low)
        found = " and ".join(f"{name} is {value:.3g}, below {self.least[name]:g}" for name, value in low.items())
        message = f"the features have collapsed at step {step}: {found} (batch indices in {path})"
        if self.on_collapse == "stop":
            raise CollapseError(
                f"{message}: start a new run with more smoothing or a lower learning rate, or resume with lower bounds"
            )
        warnings.warn(f"{message}; training continues", UserWarning, stacklevel=3)

    def _save_offender(self, reason: str, indices: list[Tensor], step: int, values: Mapping[str, float]) -> Path:
        """Write the global batch's indices, rank by rank, to <folder>/offending/<reason>-step-<step>.json on rank 0."""
        path = self.folder / "offending" / f"{reason}-step-{step:08d}.json"
        mine = {
            "indices": [batch.tolist() for batch in indices],
            **{name: value if math.isfinite(value) else str(value) for name, value in values.items()},
        }
        ranks = gather_objects(mine)
        if rank() == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"reason": reason, "step": step, "ranks": ranks}, indent=1) + "\n")
        return path
