"""FixMatch's strong augmentation: RandAugment from a pool of 14 operations, then Cutout, batched."""

from torch import Tensor

from sts_methods.sampler import Keys
from sts_methods.views import StrongView


def strengthen(images: Tensor, view: StrongView, keys: Keys, *, seed: int, stream: int) -> Tensor:
    raise NotImplementedError
