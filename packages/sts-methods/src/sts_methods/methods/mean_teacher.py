"""Mean Teacher (Tarvainen & Valpola, 2017): the student agrees with its smoothed teacher on another view."""

import math
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F

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
    """The classifier and the consistency cost; numbers from mean-teacher pytorch/experiments/cifar10_test.py."""

    backbone: str = "wrn_28_2"  # the reference's is a Shake-Shake-26; this one makes FixMatch comparable
    """Name for `build_backbone`."""
    stem: Stem = "cifar"
    """First layers: ImageNet's, or a 3x3 convolution without max-pool for small images."""
    num_classes: int
    """Number of classes."""
    consistency_weight: float = 100.0  # consistency, with the mean over classes that `softmax_mse` takes
    """w, the weight of the consistency cost after its ramp-up."""
    ramp_up_steps: int = 1950  # consistency_rampup: 5 epochs, of 390 batches of 128 images
    """Steps over which the consistency cost rises to its weight."""

    def __post_init__(self) -> None:
        check_positive(num_classes=self.num_classes)
        check_not_negative(consistency_weight=self.consistency_weight, ramp_up_steps=self.ramp_up_steps)


class MeanTeacher(StudentTeacherMethod):
    """L = H(y, student(labelled)) + w(k)·mean((softmax(student(view 1)) − softmax(teacher(view 2)))²).

    Both networks are in train mode, with batch norm statistics of their own. Every unlabelled set holds the labelled
    images too, so the consistency covers all of them, as in the reference.
    """

    student: Encoder
    teacher: Encoder

    def __init__(self, config: MeanTeacherConfig, *, seed: int) -> None:
        super().__init__()
        self.config = config
        with initialised_from(seed):
            backbone = build_backbone(config.backbone, stem=config.stem)
            self.student = Encoder(backbone, linear_classifier(num_features(backbone), config.num_classes))
        use_cross_rank_batch_norm(self.student)
        self.teacher = cast(Encoder, make_teacher(self.student))

    def forward(self, batch: Batch) -> StepResult:
        students_view, teachers_view = batch.views
        labelled, labels = batch.labelled_part()
        num_labelled = len(labelled)
        features = self.student.backbone(torch.cat([labelled, students_view]))
        logits = self.student.head(features).float()
        with torch.no_grad():
            teacher_features = self.teacher.backbone(teachers_view)
            teacher_logits = self.teacher.head(teacher_features).float()
        supervised = F.cross_entropy(logits[:num_labelled], labels)
        consistency = softmax_mse(logits[num_labelled:], teacher_logits)
        weight = consistency_weight(batch.step, self.config)
        metrics = {
            "supervised_loss": supervised.detach(),
            "consistency_loss": consistency.detach(),
            **health_metrics(features[num_labelled:], teacher_features),
        }
        return StepResult(supervised + weight * consistency, metrics)


def consistency_weight(step: int, config: MeanTeacherConfig) -> float:
    """w(k) = w·exp(−5·(1 − min(k/K, 1))²), the sigmoid-shaped ramp-up of Laine & Aila (2017)."""
    progress = min(step / config.ramp_up_steps, 1.0) if config.ramp_up_steps else 1.0
    return config.consistency_weight * math.exp(-5.0 * (1.0 - progress) ** 2)


RECORD = MethodRecord(
    name="mean_teacher", config=MeanTeacherConfig, build=MeanTeacher, views="mean_teacher", trains_classifier=True
)
