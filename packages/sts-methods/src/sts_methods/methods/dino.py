"""DINO (Caron et al., 2021): self-distillation without labels, many crops against the teacher's two."""

from dataclasses import dataclass
from itertools import groupby
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sts_core import ConfigError, make_teacher
from sts_core.distributed import sum_over_ranks, world_size
from sts_core.fields import added
from sts_methods.batch import Batch
from sts_methods.methods.base import MethodRecord, StepResult, StudentTeacherMethod
from sts_methods.methods.health import health_metrics
from sts_methods.methods.losses import cross_view_entropy, full_precision
from sts_methods.networks.backbones import Stem, build_backbone, features, num_features
from sts_methods.networks.batch_norm import use_cross_rank_batch_norm
from sts_methods.networks.drop_path import draws_of, dropping, use_drop_path
from sts_methods.networks.heads import Encoder, initialised_from
from sts_methods.validation import check_not_negative, check_positive

NUM_GLOBAL_VIEWS = 2


@dataclass(frozen=True, kw_only=True)
class DinoConfig:
    """The networks and temperatures of DINO; numbers from facebookresearch/dino main_dino.py, vision_transformer.py.

    The schedules of weight decay and learning rate are the optimizer's (`sts_methods.recipes.dino_imagenet`). Left out:
    a trained gain of the last layer. Otherwise than there: the teacher's temperature moves at every step, not every
    epoch; timm's transformers start the class token at a deviation of 1e-6, not .02, and resize position embeddings
    with antialiasing.
    """

    backbone: str = "vit_small_patch16_224"  # --arch, --patch_size
    """Name for `build_backbone`."""
    stem: Stem = "imagenet"
    """First layers: ImageNet's, or a 3x3 convolution without max-pool for small images (ResNets)."""
    drop_path: float = added(0.0)  # --drop_path_rate 0.1 for transformers
    """Share of samples that skip a residual branch of the student's last block, less before it; transformers only."""
    hidden_dim: int = 2048  # DINOHead
    """Width of the two hidden layers of the head."""
    head_batch_norm: bool = False  # --use_bn_in_head
    """Batch norm after the hidden layers: short runs of convolutional networks start faster with it."""
    bottleneck_dim: int = 256  # DINOHead
    """Width of the normalised embeddings that meet the prototypes."""
    num_prototypes: int = 65_536  # --out_dim
    """Number of outputs of the head."""
    student_temperature: float = 0.1  # DINOLoss
    """Temperature of the student's softmax."""
    teacher_temperature: float = 0.04  # --teacher_temp
    """Temperature of the teacher's softmax after its warm-up: sharpening."""
    warmup_teacher_temperature: float = 0.04  # --warmup_teacher_temp
    """The teacher's temperature at the first step."""
    warmup_teacher_steps: int = 0  # --warmup_teacher_temp_epochs, in steps
    """Steps over which the teacher's temperature moves linearly to its final value."""
    center_momentum: float = 0.9  # DINOLoss
    """Momentum of the centre that is subtracted from the teacher's scores."""
    freeze_prototypes_steps: int = 0  # --freeze_last_layer is one epoch, whose steps depend on data and batch
    """Steps at the start in which the prototypes do not learn."""

    def __post_init__(self) -> None:
        check_positive(
            hidden_dim=self.hidden_dim,
            bottleneck_dim=self.bottleneck_dim,
            num_prototypes=self.num_prototypes,
            student_temperature=self.student_temperature,
            teacher_temperature=self.teacher_temperature,
            warmup_teacher_temperature=self.warmup_teacher_temperature,
        )
        check_not_negative(
            warmup_teacher_steps=self.warmup_teacher_steps, freeze_prototypes_steps=self.freeze_prototypes_steps
        )
        if not 0.0 <= self.drop_path < 1.0:
            raise ConfigError(f"drop_path must be in [0, 1), got {self.drop_path!r}", fields=("drop_path",))
        if not 0.0 <= self.center_momentum < 1.0:
            raise ConfigError(
                f"center_momentum must be in [0, 1), got {self.center_momentum!r}: the reference has 0.9",
                fields=("center_momentum",),
            )


class Prototypes(nn.Linear):
    """Scores of normalised embeddings against normalised prototypes: a weight-normed layer whose gain stays 1."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def forward(self, embeddings: Tensor) -> Tensor:
        return F.linear(F.normalize(embeddings, dim=1), F.normalize(self.weight, dim=1))


def _head(inputs: int, config: DinoConfig) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in (inputs, config.hidden_dim):
        layers.append(nn.Linear(width, config.hidden_dim))
        layers += [nn.BatchNorm1d(config.hidden_dim)] if config.head_batch_norm else []
        layers.append(nn.GELU())
    layers.append(nn.Linear(config.hidden_dim, config.bottleneck_dim))
    for layer in layers:
        if isinstance(layer, nn.Linear):
            nn.init.trunc_normal_(layer.weight, std=0.02)  # DINOHead._init_weights
            nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


class DinoNetwork(Encoder):
    """backbone -> three-layer MLP with GELU (`head`) -> embeddings, and the prototypes that score them."""

    def __init__(self, backbone: nn.Module, config: DinoConfig) -> None:
        super().__init__(backbone, _head(num_features(backbone), config))
        self.prototypes = Prototypes(config.bottleneck_dim, config.num_prototypes)


class Dino(StudentTeacherMethod):
    """L = mean over teacher views g, student views v ≠ g of H(softmax((t_g − c)/τ_t), softmax(s_v/τ_s)).

    The centre c is a moving average of the mean teacher score over all ranks. The first two views are the global ones,
    the only ones that the teacher sees; views of one size go through a network together.
    """

    student: DinoNetwork
    teacher: DinoNetwork
    center: Tensor

    def __init__(self, config: DinoConfig, *, seed: int) -> None:
        super().__init__()
        self.config = config
        with initialised_from(seed):
            self.student = DinoNetwork(build_backbone(config.backbone, stem=config.stem), config)
        use_cross_rank_batch_norm(self.student)
        self.teacher = cast(DinoNetwork, make_teacher(self.student))
        self.register_buffer("center", torch.zeros(config.num_prototypes))
        self._seed = seed
        self._paths = use_drop_path(self.student.backbone, config.drop_path) if config.drop_path else []

    def forward(self, batch: Batch) -> StepResult:
        config = self.config
        draws = draws_of(batch, len(self._paths), seed=self._seed) if self._paths and self.training else None
        embeddings = self.student.head(self._features(self.student, batch.views, draws))
        with torch.no_grad():
            teacher_embeddings = self.teacher.head(self._features(self.teacher, batch.views[:NUM_GLOBAL_VIEWS]))
        with full_precision(embeddings):
            scores = self.student.prototypes(embeddings.float())  # [V·N, K]
            targets = self._targets(teacher_embeddings.float(), batch)  # [2·N, K]
        num_images = len(batch.views[0])
        scores = scores.view(-1, num_images, config.num_prototypes) / config.student_temperature
        loss = cross_view_entropy(scores, targets.view(-1, num_images, config.num_prototypes))
        return StepResult(loss, health_metrics(embeddings[:num_images], teacher_embeddings[:num_images]))

    def adjust_gradients_(self, step: int) -> None:
        """Frozen prototypes have none at all: with zeros an optimizer would decay them and count its steps."""
        if step < self.config.freeze_prototypes_steps:
            self.student.prototypes.weight.grad = None

    def _features(self, network: DinoNetwork, views: tuple[Tensor, ...], draws: Tensor | None = None) -> Tensor:
        """Features of all views in their order, [V·N, D]: one forward pass for each run of views of equal size.

        `draws` [layers, V·N] decide what the student's layers drop.
        """
        runs = [torch.cat(list(run)) for _, run in groupby(views, key=lambda view: view.shape[-1])]
        parts = [None] * len(runs) if draws is None else draws.split_with_sizes([len(images) for images in runs], dim=1)
        made = []
        for images, part in zip(runs, parts, strict=True):
            with dropping(self._paths, part):
                made.append(features(network.backbone, images))
        return torch.cat(made)

    @torch.no_grad()
    def _targets(self, embeddings: Tensor, batch: Batch) -> Tensor:
        """The teacher's centred and sharpened probabilities; the centre moves on afterwards."""
        scores = self.teacher.prototypes(embeddings)
        targets: Tensor = ((scores - self.center) / teacher_temperature(batch.step, self.config)).softmax(dim=1)
        mean = sum_over_ranks(scores.mean(dim=0) * (batch.weight / world_size()))
        self.center.lerp_(mean, 1.0 - self.config.center_momentum)
        return targets


def teacher_temperature(step: int, config: DinoConfig) -> float:
    """τ_t at a step: linear from the warm-up value to the final one, then constant."""
    progress = min(step / config.warmup_teacher_steps, 1.0) if config.warmup_teacher_steps else 1.0
    return config.warmup_teacher_temperature + progress * (
        config.teacher_temperature - config.warmup_teacher_temperature
    )


RECORD = MethodRecord(name="dino", config=DinoConfig, build=Dino, views="dino", takes_uneven_shares=True)
