"""BYOL (Grill et al., 2020): the student predicts the teacher's projection of the other view."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from sts_core import make_teacher
from sts_core.fields import added
from sts_methods.batch import Batch
from sts_methods.methods.base import MethodRecord, StepResult, StudentTeacherMethod
from sts_methods.methods.health import health_metrics
from sts_methods.methods.losses import cosine_distance
from sts_methods.networks.backbones import Stem, build_backbone, num_features
from sts_methods.networks.batch_norm import each_apart, use_cross_rank_batch_norm
from sts_methods.networks.heads import Encoder, initialised_from, norm_mlp
from sts_methods.validation import check_positive


@dataclass(frozen=True, kw_only=True)
class ByolConfig:
    """The networks of BYOL. Learning rates and momenta of its variants are the optimizer's and the smoother's."""

    backbone: str = "resnet50"
    """Name for `build_backbone`."""
    stem: Stem = "imagenet"
    """First layers: ImageNet's, or a 3x3 convolution without max-pool for small images."""
    hidden_dim: int = 4096  # BYOL paper, section 3.3; deepmind-research/byol configs/byol.py
    """Hidden width of projector and predictor."""
    projection_dim: int = 256  # the same
    """Width of the projections."""
    output_bias: bool = True  # True in the code of the STS paper, False in deepmind-research/byol utils/networks.py
    """Whether the last linear layer of projector and predictor has a bias; variant `deepmind` sets False."""
    zero_init_last: bool = added(False)  # False in the code of the STS paper, True in DeepMind's (haiku)
    """Whether the last norm of each of a ResNet's blocks starts at zero; variant `deepmind` sets True."""
    concatenate_views: bool = False
    """One forward pass for both views: fewer, larger kernels, but batch norm then sees both views as one batch."""

    def __post_init__(self) -> None:
        check_positive(hidden_dim=self.hidden_dim, projection_dim=self.projection_dim)


class Student(Encoder):
    """backbone -> projector (`head`) -> predictor; the teacher is all but the predictor."""

    def __init__(self, backbone: nn.Module, projector: nn.Module, predictor: nn.Module) -> None:
        super().__init__(backbone, projector)
        self.predictor = predictor


class Byol(StudentTeacherMethod):
    """L = 2 − 2·cos(q(z₁), z′₂) + 2 − 2·cos(q(z₂), z′₁), z the student's and z′ the teacher's projections of the views.

    The two terms are summed, not averaged. All batch norms cover the global batch, the teacher's with statistics of
    its own. As in DeepMind's code, both networks see view 1 first, and update k of the teacher has the momentum m(k).
    In the STS repo the teacher sees view 2 first, so that view 1 weighs more in its running statistics (1 to .9), and
    update k has m(k + 1).
    """

    student: Student
    teacher: Encoder

    def __init__(self, config: ByolConfig, *, seed: int) -> None:
        super().__init__()
        self.config = config
        with initialised_from(seed):
            backbone = build_backbone(config.backbone, stem=config.stem, zero_init_last=config.zero_init_last)
            hidden, width = config.hidden_dim, config.projection_dim
            projector = norm_mlp(num_features(backbone), hidden, width, output_bias=config.output_bias)
            predictor = norm_mlp(width, hidden, width, output_bias=config.output_bias)
        self.student = Student(backbone, projector, predictor)
        use_cross_rank_batch_norm(self.student)
        self.teacher = cast(Encoder, make_teacher(Encoder(self.student.backbone, self.student.head)))

    def forward(self, batch: Batch) -> StepResult:
        z1, z2 = self._of_both(self.student, batch.views)
        q1, q2 = self._of_both(self.student.predictor, (z1, z2))
        with torch.no_grad():
            t1, t2 = self._of_both(self.teacher, batch.views)
        loss = cosine_distance(q1, t2) + cosine_distance(q2, t1)
        return StepResult(loss, health_metrics(z1, t1))

    def _of_both(self, network: nn.Module, views: Sequence[Tensor]) -> Sequence[Tensor]:
        if self.config.concatenate_views:
            return cast(Tensor, network(torch.cat(list(views)))).chunk(2)
        return each_apart(network, views)


RECORD = MethodRecord(
    name="byol",
    config=ByolConfig,
    build=Byol,
    views="byol",
    also_takes=("byol_deepmind", "moco"),
    takes_uneven_shares=True,
)
