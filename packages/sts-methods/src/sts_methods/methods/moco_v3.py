"""MoCo v3 (Chen et al., 2021): the student predicts the teacher's key of the other view among those of the batch."""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sts_core import ConfigError, make_teacher
from sts_core.distributed import gather_batch, rank
from sts_methods.batch import Batch
from sts_methods.methods.base import MethodRecord, StepResult, StudentTeacherMethod
from sts_methods.methods.byol import Student
from sts_methods.methods.health import health_metrics
from sts_methods.methods.losses import full_precision
from sts_methods.networks.backbones import Stem, build_backbone, num_features
from sts_methods.networks.batch_norm import each_apart, use_cross_rank_batch_norm
from sts_methods.networks.heads import Encoder, initialised_from
from sts_methods.validation import check_positive


@dataclass(frozen=True, kw_only=True)
class MoCoV3Config:
    """The networks of MoCo v3; numbers from facebookresearch/moco-v3 main_moco.py, moco/builder.py and vits.py.

    timm's vision transformers get its weights, fixed position embeddings and deeper heads, everything else the heads of
    its ResNets. Otherwise than there: ViT-S has 6 heads of attention, as timm's, not 12 (ViT-B has 12 in both); update
    k of the teacher has the momentum m(k), not m(k + 1); position embeddings are made for the size that the name of the
    transformer says, and resized for others.
    """

    backbone: str = "resnet50"  # --arch
    """Name for `build_backbone`."""
    stem: Stem = "imagenet"
    """First layers: ImageNet's, or a 3x3 convolution without max-pool for small images."""
    zero_init_last: bool = False  # zero_init_residual=True for its ResNets
    """Whether the last norm of each of a ResNet's blocks starts at zero; the recipe sets True."""
    freeze_patches: bool = False  # --stop-grad-conv1
    """Whether a vision transformer's projection of patches stays as it was drawn; the recipe sets True."""
    hidden_dim: int = 4096  # --moco-mlp-dim
    """Hidden width of projector and predictor."""
    dim: int = 256  # --moco-dim
    """Width of queries and keys."""
    temperature: float = 1.0  # --moco-t; CONFIG.md has .2 for vision transformers
    """T of the InfoNCE loss."""

    def __post_init__(self) -> None:
        check_positive(hidden_dim=self.hidden_dim, dim=self.dim, temperature=self.temperature)


class MoCoV3(StudentTeacherMethod):
    """L = 2T·(InfoNCE(q(z₁), z′₂) + InfoNCE(q(z₂), z′₁)), z the student's and z′ the teacher's projections.

    The negatives of a query are the keys of all other images of the global batch; there is no queue. All batch norms
    cover the global batch, the teacher's with statistics of its own.
    """

    student: Student
    teacher: Encoder

    def __init__(self, config: MoCoV3Config, *, seed: int) -> None:
        super().__init__()
        self.config = config
        hidden, dim = config.hidden_dim, config.dim
        with initialised_from(seed):
            backbone = build_backbone(config.backbone, stem=config.stem, zero_init_last=config.zero_init_last)
            transformer = _prepared_transformer(backbone, freeze_patches=config.freeze_patches)
            between = (hidden, hidden) if transformer else (hidden,)
            projector = _mlp(num_features(backbone), *between, dim, last_norm=True)
            predictor = _mlp(dim, hidden, dim, last_norm=transformer)
        self.student = Student(backbone, projector, predictor)
        use_cross_rank_batch_norm(self.student)
        self.teacher = cast(Encoder, make_teacher(Encoder(self.student.backbone, self.student.head)))

    def forward(self, batch: Batch) -> StepResult:
        z1, z2 = each_apart(self.student, batch.views)
        q1, q2 = each_apart(self.student.predictor, (z1, z2))
        with torch.no_grad():
            t1, t2 = each_apart(self.teacher, batch.views)
            k1, k2 = gather_batch(torch.stack([_normalised(t1), _normalised(t2)], dim=1)).unbind(1)
        temperature = self.config.temperature
        losses, accuracies = zip(
            *(contrast(_normalised(q), keys, temperature=temperature) for q, keys in ((q1, k2), (q2, k1))), strict=True
        )
        loss = 2.0 * temperature * (losses[0] + losses[1])
        return StepResult(loss, {"accuracy": (accuracies[0] + accuracies[1]) / 2, **health_metrics(z1, t1)})


def contrast(queries: Tensor, keys: Tensor, *, temperature: float) -> tuple[Tensor, Tensor]:
    """InfoNCE of this rank's normalised queries [N, D] among the keys of all ranks [M, D], and its accuracy.

        L = mean over i of −log( exp(qᵢ·kᵢ/T) / Σⱼ exp(qᵢ·kⱼ/T) )

    The key of query i is row rank·N + i.
    """
    with full_precision(queries):
        scores = queries @ keys.T / temperature  # [N, M]
    own = torch.arange(len(queries), device=scores.device) + rank() * len(queries)
    return F.cross_entropy(scores, own), (scores.detach().argmax(dim=1) == own).float().mean()


def _normalised(embeddings: Tensor) -> Tensor:
    return F.normalize(embeddings.float(), dim=1)


def _mlp(*widths: int, last_norm: bool) -> nn.Sequential:
    """Linear layers without bias, each followed by batch norm and ReLU, the last by a plain batch norm or nothing."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs, bias=False), nn.BatchNorm1d(outputs), nn.ReLU(inplace=True)]
    del layers[-2:]
    return nn.Sequential(*layers, *([nn.BatchNorm1d(widths[-1], affine=False)] if last_norm else []))


def _prepared_transformer(backbone: nn.Module, *, freeze_patches: bool) -> bool:
    """Whether `backbone` is one of timm's vision transformers, which then starts as MoCo v3's does."""
    from timm.models.vision_transformer import (
        VisionTransformer,
    )  # takes seconds: those who only read configs do not wait

    if not isinstance(backbone, VisionTransformer) or backbone.pos_embed is None:
        if freeze_patches:
            raise ConfigError(
                f"freeze_patches is for timm's vision transformers, got {type(backbone).__name__}: set it to false",
                fields=("freeze_patches", "backbone"),
            )
        return False
    backbone.init_weights("moco")  # but for what follows
    projection = backbone.patch_embed.proj
    nn.init.xavier_uniform_(projection.weight.data.flatten(1))
    nn.init.zeros_(projection.bias)
    projection.requires_grad_(not freeze_patches)
    positions = backbone.pos_embed.requires_grad_(False)
    rows, columns = backbone.patch_embed.grid_size
    places = sin_cos_positions(rows, columns, positions.shape[-1])
    positions.data.zero_()[:, -len(places) :] = places
    return True


def sin_cos_positions(rows: int, columns: int, width: int) -> Tensor:
    """Embeddings of the places of a grid, row after row: sin and cos of the row, then of the column, width / 4 each."""
    frequencies = torch.exp(torch.arange(width // 4) / (width // 4) * -math.log(10_000.0))
    row, column = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    angles = [place.reshape(-1, 1) * frequencies for place in (row, column)]
    return torch.cat([wave(angle) for angle in angles for wave in (torch.sin, torch.cos)], dim=1)


RECORD = MethodRecord(
    name="moco_v3", config=MoCoV3Config, build=MoCoV3, views="byol", also_takes=("byol_deepmind", "moco")
)
