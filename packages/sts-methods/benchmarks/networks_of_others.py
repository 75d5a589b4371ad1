"""The networks whose step is counted on a null GPU beside ours: lightly's blocks, and as the references write them.

Each makes a loss of two views, has `update_teacher()` and, where its loop reads numbers in every step, `report(loss)`.
"""

import copy
from collections.abc import Callable

import timm
import torch
import torch.distributed as dist
import torch.nn.functional as F
from lightly.loss import NTXentLoss
from lightly.models.utils import batch_shuffle_distributed, batch_unshuffle_distributed
from step import CASES, LightlyByol, LightlyMoCo
from torch import Tensor, nn


@torch.no_grad()
def move_(teacher: nn.Module, student: nn.Module) -> None:
    for old, new in zip(teacher.parameters(), student.parameters(), strict=True):
        old.data = 0.99 * old.data + 0.01 * new.data


def gathered(local: Tensor) -> Tensor:
    parts = [torch.empty_like(local) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, local)
    return torch.cat(parts)


class ManyMoCo(LightlyMoCo):
    """As in lightly's tutorial for several GPUs."""

    def __init__(self) -> None:
        super().__init__(CASES["resnet50"])
        self.criterion = NTXentLoss(temperature=0.2, memory_bank_size=(65_536, 128), gather_distributed=True)

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        query = self.projection_head(self.backbone(one))
        with torch.no_grad():
            shuffled, order = batch_shuffle_distributed(two)
            key = batch_unshuffle_distributed(self.projection_head_momentum(self.backbone_momentum(shuffled)), order)
        loss: Tensor = self.criterion(query, key)
        return loss


class ReferenceByol(LightlyByol):
    def update_teacher(self) -> None:
        move_(self.backbone_momentum, self.backbone)
        move_(self.projection_head_momentum, self.projection_head)

    def report(self, loss: Tensor) -> None:
        loss.item()


class ReferenceMoCo(nn.Module):
    """Images and keys of all ranks are gathered, shuffled by rank 0's order; logits against the whole queue."""

    def __init__(self) -> None:
        super().__init__()
        self.student = timm.create_model("resnet50", num_classes=128)
        width = self.student.num_features
        self.student.fc = nn.Sequential(nn.Linear(width, width), nn.ReLU(), self.student.fc)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(128, 65_536), dim=0))
        self.register_buffer("position", torch.zeros(1, dtype=torch.long))

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        queries = F.normalize(self.student(one), dim=1)
        with torch.no_grad():
            move_(self.teacher, self.student)
            images = gathered(two)
            order = torch.randperm(len(images)).cuda()
            dist.broadcast(order, src=0)
            back = order.argsort().view(dist.get_world_size(), -1)[0]
            keys = F.normalize(self.teacher(images[order.view(dist.get_world_size(), -1)[0]]), dim=1)
            keys = gathered(keys)[back]
        positive = (queries * keys).sum(dim=1, keepdim=True)
        self.logits = torch.cat([positive, queries @ self.queue.clone()], dim=1) / 0.2
        self.labels = torch.zeros(len(self.logits), dtype=torch.long).cuda()
        self.enqueue(keys)
        return F.cross_entropy(self.logits, self.labels)

    @torch.no_grad()
    def enqueue(self, keys: Tensor) -> None:
        keys, first = gathered(keys), int(self.position)
        self.queue[:, first : first + len(keys)] = keys.T
        self.position[0] = (first + len(keys)) % self.queue.shape[1]

    def update_teacher(self) -> None:
        """Moved in the next forward pass."""

    @torch.no_grad()
    def report(self, loss: Tensor) -> None:
        hits = self.logits.topk(5, dim=1).indices == self.labels[:, None]
        for value in (loss, hits[:, 0].float().mean(), hits.any(dim=1).float().mean()):
            value.item()


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "byol lightly": lambda: LightlyByol(CASES["resnet50"]),
    "byol reference": lambda: ReferenceByol(CASES["resnet50"]),
    "moco lightly": ManyMoCo,
    "moco reference": ReferenceMoCo,
}
