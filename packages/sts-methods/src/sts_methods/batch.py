"""What a method is given at a step."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from sts_core import ConfigError
from sts_core.distributed import rank

LabelledOrder = Literal["random", "epochs"]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One rank's share of a (micro-)batch, on the device and normalised."""

    views: tuple[Tensor, ...]
    """Views of the unlabelled images: (one, two) for BYOL and MoCo, (weak, strong) for FixMatch,
    (student's, teacher's) for Mean Teacher, (global, global, local, ...) for DINO."""
    indices: Tensor
    """Index of each unlabelled image in its dataset."""
    step: int
    """The optimizer step this batch belongs to: the key of every draw a method makes."""
    labelled: Tensor | None = None
    """Weakly augmented labelled images (FixMatch, Mean Teacher)."""
    labels: Tensor | None = None
    """Their classes."""
    teachers_labelled: Tensor | None = None
    """The teacher's view of the labelled images (Mean Teacher)."""
    shares: tuple[int, ...] | None = None
    """How many of the micro-batch's images each rank has, if that differs: only their ratios mean anything."""

    @property
    def weight(self) -> float:
        """This rank's images over the mean of all ranks', by which its mean loss counts in that of the ranks."""
        return 1.0 if self.shares is None else self.shares[rank()] * len(self.shares) / sum(self.shares)

    def rows_of_ranks(self, mine: int) -> tuple[int, ...] | None:
        """How many rows each rank has of what this one has `mine`; None if all have as many."""
        return None if self.shares is None else tuple(mine * share // self.shares[rank()] for share in self.shares)

    def labelled_part(self) -> tuple[Tensor, Tensor]:
        """The labelled images and their classes, for methods that cannot do without."""
        if self.labelled is None or self.labels is None:
            raise ConfigError(
                "this method learns from labels too, got a batch without: choose data.views that come with labels"
            )
        return self.labelled, self.labels

    def teachers_labelled_part(self) -> Tensor:
        """The teacher's view of the labelled images, for methods that cannot do without."""
        if self.teachers_labelled is None:
            raise ConfigError("this method needs a second view of labelled images: choose data.views that have one")
        return self.teachers_labelled
