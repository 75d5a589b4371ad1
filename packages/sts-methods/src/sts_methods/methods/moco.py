"""MoCo v2 (He et al., 2020; Chen et al., 2020): a student's query finds its teacher's key among a queue of others."""

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sts_core import make_teacher
from sts_core.distributed import exchange_rows, gather_batch, on_device, rank, world_size
from sts_methods.batch import Batch
from sts_methods.draws import permutation
from sts_methods.methods.base import MethodRecord, StepResult, StudentTeacherMethod
from sts_methods.methods.health import health_metrics
from sts_methods.methods.losses import info_nce
from sts_methods.networks.backbones import Stem, build_backbone, num_features
from sts_methods.networks.batch_norm import average_running_statistics, use_group_batch_norm
from sts_methods.networks.heads import Encoder, initialised_from
from sts_methods.validation import check_positive

SHUFFLE_STREAM = 8  # keeps the shuffling apart from the draws of the data (see draws.py)


@dataclass(frozen=True, kw_only=True)
class MoCoConfig:
    """The networks and the queue of MoCo v2; numbers from its main_moco.py run with `--mlp --moco-t 0.2`."""

    backbone: str = "resnet50"
    """Name for `build_backbone`."""
    stem: Stem = "imagenet"
    """First layers: ImageNet's, or a 3x3 convolution without max-pool for small images."""
    dim: int = 128  # --moco-dim
    """Width of queries and keys."""
    queue_size: int = 65_536  # --moco-k
    """Number of keys kept as negatives."""
    temperature: float = 0.2  # --moco-t of v2
    """T of the InfoNCE loss."""
    bn_groups: int = 8  # batch 256 on 8 GPUs, 32 images a GPU
    """Groups of the global batch with batch norm statistics of their own: real or virtual ranks."""
    shuffle: bool = True
    """ShuffleBN: keys are normalised in other groups than their queries, so statistics do not give the answer away."""

    def __post_init__(self) -> None:
        check_positive(dim=self.dim, queue_size=self.queue_size, temperature=self.temperature, bn_groups=self.bn_groups)


class MoCo(StudentTeacherMethod):
    """L = InfoNCE(student(view 1), teacher(view 2), queue), asymmetric.

    The keys of all ranks enter the queue after the logits. The reference moves the teacher between query and key pass
    of a step; moving it after the optimizer step before is the same update.
    """

    student: Encoder
    teacher: Encoder
    queue: Tensor
    queue_position: Tensor

    def __init__(self, config: MoCoConfig, *, seed: int) -> None:
        super().__init__()
        self.config, self.seed = config, seed
        with initialised_from(seed):
            backbone = build_backbone(config.backbone, stem=config.stem)
            width = num_features(backbone)
            # No batch norm in the head, hidden as wide as the features (moco/builder.py)
            head = nn.Sequential(nn.Linear(width, width), nn.ReLU(inplace=True), nn.Linear(width, config.dim))
            queue = F.normalize(torch.randn(config.queue_size, config.dim), dim=1)
        self.student = Encoder(backbone, head)
        use_group_batch_norm(self.student, num_groups=config.bn_groups)
        self.teacher = cast(Encoder, make_teacher(self.student))
        self.register_buffer("queue", queue)
        self.register_buffer("queue_position", torch.zeros((), dtype=torch.long))

    def forward(self, batch: Batch) -> StepResult:
        view_of_query, view_of_key = batch.views
        queries = F.normalize(self.student(view_of_query).float(), dim=1)
        all_keys = self._keys(view_of_key, batch.step)
        keys = all_keys.chunk(world_size())[rank()]
        # A copy, because the backward pass needs the negatives after the queue has moved on.
        loss, accuracy = info_nce(queries, keys, self.queue.clone(), temperature=self.config.temperature)
        self._enqueue(all_keys)
        self.statistics_are_shared = world_size() == 1
        return StepResult(loss, {"accuracy": accuracy, **health_metrics(queries, keys)})

    def share_statistics_(self) -> None:
        """The running statistics become their mean over ranks; in train mode no step depends on them."""
        if not self.statistics_are_shared:
            average_running_statistics(self.student, self.teacher)
        self.statistics_are_shared = True

    @torch.no_grad()
    def _keys(self, images: Tensor, step: int) -> Tensor:
        """The normalised keys of the global batch, in its order; each rank computes a share of the shuffled batch."""
        if not self.config.shuffle:
            return gather_batch(F.normalize(self.teacher(images).float(), dim=1))
        order = shuffle_order(world_size() * len(images), seed=self.seed, step=step)
        keys = gather_batch(F.normalize(self.teacher(exchange_rows(images, order)).float(), dim=1))
        return keys[on_device(order.argsort(), keys.device)]

    @torch.no_grad()
    def _enqueue(self, keys: Tensor) -> None:
        """Overwrite the oldest keys; of a batch larger than the queue the last ones stay."""
        size, num = self.config.queue_size, len(keys)
        offsets = torch.arange(max(0, num - size), num, device=keys.device)
        self.queue.index_copy_(0, (self.queue_position + offsets) % size, keys[offsets])
        self.queue_position.add_(num).remainder_(size)


def shuffle_order(num: int, *, seed: int, step: int) -> Tensor:
    """ShuffleBN's order of the global batch, a pure function of (seed, step): every rank computes the same."""
    return torch.from_numpy(permutation(num, seed=seed, stream=SHUFFLE_STREAM, epoch=step))


RECORD = MethodRecord(
    name="moco",
    config=MoCoConfig,
    build=MoCo,
    views="moco",
    also_takes=("byol",),
    smallest_batch=lambda config: 2 * config.bn_groups,
)
