"""What stops a run that no longer makes sense: a non-finite loss, or collapsed features."""

import json
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from sts_core import StsError
from sts_core.distributed import agree, gather_objects, rank
from sts_methods.batch import Batch

Reaction = Literal["stop", "warn"]


class NonFiniteLossError(StsError, ArithmeticError):
    """The loss is NaN or infinite."""


class CollapseError(StsError, RuntimeError):
    """The features carry no information any more."""


class Guard:
    """Watches losses and health metrics, saves the indices of offending batches and stops or warns."""

    def __init__(
        self,
        folder: Path,
        *,
        on_nonfinite: Reaction,
        on_collapse: Reaction,
        least: Mapping[str, float],
    ) -> None:
        self.folder = folder
        self.on_nonfinite: Reaction = on_nonfinite
        self.on_collapse: Reaction = on_collapse
        self.least = {name: bound for name, bound in least.items() if bound > 0.0}
        """The smallest healthy value of a metric."""
        self._collapsed = False

    def accepts(self, loss: Tensor, batches: Sequence[Batch], step: int) -> bool:
        """Whether this loss's gradients may be applied; asked on every rank at every step, before the optimizer."""
        if not agree(not math.isfinite(loss.item()), loss.device):
            return True
        path = self._save_offender("nonfinite", batches, step, {"loss": loss.item()})
        message = f"the loss must be finite, got {loss.item()} on this rank at step {step} (batch indices in {path})"
        if self.on_nonfinite == "stop":
            raise NonFiniteLossError(f"{message}: start a new run with a lower learning rate or in float32")
        warnings.warn(f"{message}: the update was left out", UserWarning, stacklevel=3)
        return False

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
        path = self._save_offender("collapse", batches, step, low)
        found = " and ".join(f"{name} is {value:.3g}, below {self.least[name]:g}" for name, value in low.items())
        message = f"the features have collapsed at step {step}: {found} (batch indices in {path})"
        if self.on_collapse == "stop":
            raise CollapseError(
                f"{message}: start a new run with more smoothing or a lower learning rate, or resume with lower bounds"
            )
        warnings.warn(f"{message}; training continues", UserWarning, stacklevel=3)

    def _save_offender(self, reason: str, batches: Sequence[Batch], step: int, values: Mapping[str, float]) -> Path:
        """Write the global batch's indices, rank by rank, to <folder>/offending/<reason>-step-<step>.json on rank 0."""
        path = self.folder / "offending" / f"{reason}-step-{step:08d}.json"
        mine = {
            "indices": [batch.indices.tolist() for batch in batches],
            **{name: value if math.isfinite(value) else str(value) for name, value in values.items()},
        }
        ranks = gather_objects(mine)
        if rank() == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"reason": reason, "step": step, "ranks": ranks}, indent=1) + "\n")
        return path
