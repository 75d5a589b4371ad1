"""One view of a batch, as the feeds make it."""

from torch import Tensor

from sts_methods.draws import Keys
from sts_methods.transfer import sent
from sts_methods.views.batched import make_views, plan_views
from sts_methods.views.specs import View


def augment_batch(images: Tensor, view: View, keys: Keys, *, seed: int, stream: int) -> Tensor:
    """The view of each image of a uint8 batch [N, 3, H, W], on its device."""
    side = (images.shape[2], images.shape[3])
    plan = plan_views((view,), keys, seed=seed, streams=(stream,), side=side)
    return make_views(images, sent(plan, images.device))
