"""Mean Teacher (Tarvainen & Valpola, 2017): the student agrees with its smoothed teacher on another view."""

import math
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

from sts_core import make_teacher
from sts_methods.batch import Batch
from sts_methods.methods.base import MethodRecord, StepResult, StudentTeacherMethod
from sts_methods.methods.health import health_metrics
from sts_methods.methods.losses import softmax_mse
from sts_methods.networks.backbones import Stem, build_backbone, num_features
from sts_methods.networks.batch_norm import use_cross_rank_batch_norm
from sts_methods.networks.heads import Encoder, initialised_from, linear_classifier
from sts_methods.validation import check_not_negative, check_positive


@dataclass(frozen=True, kw_only=True)
class MeanTeacherConfig:
    """The classifier and the costs; numbers from mean-teacher pytorch/experiments/cifar10_test.py, for 4,000 labels.

    Its training is `sts_methods.recipes.mean_teacher_cifar`. Not followed: the network, 31 labelled and 97 other images
    a batch (here an integer `unlabelled_ratio`; 3 comes near), and an unlabelled set without the labelled images (here
    it is all images).
    """

    backbone: str = "wrn_28_2"  # the reference's is a Shake-Shake-26; this one makes FixMatch comparable
    """Name for `build_backbone`."""
    stem: Stem = "cifar"
    """First layers: ImageNet's, or a 3x3 convolution without max-pool for small images."""
    num_classes: int
    """Number of classes."""
    consistency_weight: float = 100.0  # consistency
    """w, the weight of the consistency cost after its ramp-up."""
    ramp_up_steps: int = 2370  # consistency_rampup: 5 epochs, of 474 steps; with 1,000 labels of 505
    """Steps over which the consistency cost rises to its weight."""
    ramp_up_stages: int = 5  # one an epoch
    """Equal parts of the ramp-up, in each of which the weight is constant."""
    logit_distance_cost: float | None = 0.01  # logit_distance_cost
    """Weight of the squared distance between the logits of two heads, one of which learns labels and the other
    consistency; None has one head for both."""

    def __post_init__(self) -> None:
        check_positive(num_classes=self.num_classes, ramp_up_stages=self.ramp_up_stages)
        check_not_negative(
            consistency_weight=self.consistency_weight,
            ramp_up_steps=self.ramp_up_steps,
            logit_distance_cost=self.logit_distance_cost or 0.0,
        )


class Classifier(Encoder):
    """backbone -> class logits (`head`) and, unless one head does both, the logits that are to be consistent."""

    def __init__(self, backbone: nn.Module, config: MeanTeacherConfig) -> None:
        width = num_features(backbone)
        super().__init__(backbone, linear_classifier(width, config.num_classes))
        two = config.logit_distance_cost is not None
        self.consistency_head = linear_classifier(width, config.num_classes) if two else None


class MeanTeacher(StudentTeacherMethod):
    """L = 1/n·(Σ over labelled i of H(yᵢ, sᵢ) + Σᵢ w(k)·‖softmax(s′ᵢ) − softmax(tᵢ)‖²/C + Σᵢ d·‖sᵢ − s′ᵢ‖²/C).

    s and s′ are the logits of the student's two heads, t those of the teacher's first one on another view, n the number
    of images, labelled or not, C of classes, d the cost of a distance between the heads. Both networks see all images,
    in train mode, with batch norm statistics of their own.
    """

    student: Classifier
    teacher: Classifier

    def __init__(self, config: MeanTeacherConfig, *, seed: int) -> None:
        super().__init__()
        self.config = config
        with initialised_from(seed):
            self.student = Classifier(build_backbone(config.backbone, stem=config.stem), config)
        use_cross_rank_batch_norm(self.student)
        self.teacher = cast(Classifier, make_teacher(self.student))

    def forward(self, batch: Batch) -> StepResult:
        students_view, teachers_view = batch.views
        labelled, labels = batch.labelled_part()
        num_labelled = len(labelled)
        features = self.student.backbone(torch.cat([labelled, students_view]))
        logits = self.student.head(features).float()
        second = self.student.consistency_head
        consistent = logits if second is None else second(features).float()
        with torch.no_grad():
            teacher_features = self.teacher.backbone(torch.cat([batch.teachers_labelled_part(), teachers_view]))
            teacher_logits = self.teacher.head(teacher_features).float()
        supervised = F.cross_entropy(logits[:num_labelled], labels, reduction="sum") / len(logits)
        consistency = softmax_mse(consistent, teacher_logits)
        distance = (self.config.logit_distance_cost or 0.0) * F.mse_loss(logits, consistent)
        metrics = {
            "supervised_loss": supervised.detach(),
            "consistency_loss": consistency.detach(),
            **health_metrics(features[num_labelled:], teacher_features[num_labelled:]),
        }
        return StepResult(supervised + consistency_weight(batch.step, self.config) * consistency + distance, metrics)


def consistency_weight(step: int, config: MeanTeacherConfig) -> float:
    """w(k) = w·exp(−5·(1 − min(e/E, 1))²), e = ⌊E·k/K⌋: the ramp-up of Laine & Aila (2017) in E stages over K steps."""
    stages = config.ramp_up_stages
    progress = min(stages * step // config.ramp_up_steps / stages, 1.0) if config.ramp_up_steps else 1.0
    return config.consistency_weight * math.exp(-5.0 * (1.0 - progress) ** 2)


RECORD = MethodRecord(
    name="mean_teacher",
    config=MeanTeacherConfig,
    build=MeanTeacher,
    views="mean_teacher",
    trains_classifier=True,
    takes_uneven_shares=True,
)
