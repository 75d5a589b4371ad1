"""SimSiam (Chen and He, 2021), whose targets come from a smoothed teacher instead of the student itself."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import sts_methods as sts
from sts_core import make_teacher


@dataclass(frozen=True, kw_only=True)
class SimSiamConfig:
    """The networks of SimSiam."""

    backbone: str = "resnet50"
    """Name for `build_backbone`."""
    stem: sts.Stem = "imagenet"
    """First layers of the backbone."""
    dim: int = 2048
    """Width of the projections."""
    bottleneck: int = 512
    """Hidden width of the predictor."""


class SimSiam(sts.StudentTeacherMethod):
    """The student predicts the teacher's projection of the other view."""

    def __init__(self, config: SimSiamConfig, *, seed: int) -> None:
        super().__init__()
        with sts.initialised_from(seed):
            backbone = sts.build_backbone(config.backbone, stem=config.stem)
            projector = sts.norm_mlp(sts.num_features(backbone), config.dim, config.dim, output_bias=False)
            projector.append(nn.BatchNorm1d(config.dim, affine=False))
            self.predictor = sts.norm_mlp(config.dim, config.bottleneck, config.dim, output_bias=True)
        self.student = sts.Encoder(backbone, projector)
        sts.use_cross_rank_batch_norm(self)
        self.teacher = make_teacher(self.student)

    def forward(self, batch: sts.Batch) -> sts.StepResult:
        one, two = batch.views
        z1, z2 = self.student(one), self.student(two)
        with torch.no_grad():
            t1, t2 = self.teacher(one), self.teacher(two)
        loss: Tensor = sts.cosine_distance(self.predictor(z1), t2) + sts.cosine_distance(self.predictor(z2), t1)
        return sts.StepResult(loss / 2, sts.health_metrics(z1, t1))


sts.register_views(sts.ViewsRecord(name="crops", photographs=lambda size, _: (sts.CropView(size=size),) * 2))
sts.register_method(sts.MethodRecord(name="sim_siam", config=SimSiamConfig, build=SimSiam, views="crops"))
