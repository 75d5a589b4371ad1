"""FixMatch (Sohn et al., 2020): confident predictions on weak views are the labels of strong views."""

from dataclasses import dataclass
from typing import cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from sts_core import Buffers, ConfigError, Network, make_teacher
from sts_methods.batch import Batch, LabelledOrder
from sts_methods.methods.base import MethodRecord, StepResult, StudentTeacherMethod
from sts_methods.methods.health import health_metrics, relative_weight_distance
from sts_methods.methods.losses import pseudo_label_loss
from sts_methods.networks.backbones import Stem, build_backbone, num_features
from sts_methods.networks.batch_norm import use_cross_rank_batch_norm
from sts_methods.networks.heads import Encoder, initialised_from, linear_classifier
from sts_methods.validation import check_not_negative, check_positive


@dataclass(frozen=True, kw_only=True)
class FixMatchConfig:
    """The classifier and the consistency of FixMatch; numbers from google-research/fixmatch fixmatch.py."""

    backbone: str = "wrn_28_2"
    """Name for `build_backbone`; CIFAR-100 needs wrn_28_8."""
    stem: Stem = "cifar"
    """First layers: ImageNet's, or a 3x3 convolution without max-pool for small images."""
    num_classes: int
    """Number of classes."""
    threshold: float = 0.95  # --confidence
    """τ, the probability from which a prediction counts as a label."""
    unlabelled_weight: float = 1.0  # --wu
    """λ, the weight of the unlabelled loss."""
    pseudo_labels: Network = "student"
    """Who labels: the student in the same forward pass (the reference), or the smoothed teacher in eval mode."""
    labelled_order: LabelledOrder = "random"  # kekmodel's and google's
    """Labelled images are drawn at random from many copies of all, or each comes once an epoch (more even batches)."""

    def __post_init__(self) -> None:
        check_positive(num_classes=self.num_classes)
        check_not_negative(unlabelled_weight=self.unlabelled_weight)
        if not 0.0 <= self.threshold <= 1.0:
            raise ConfigError(
                f"threshold must be a probability, got {self.threshold!r}: the reference has 0.95",
                fields=("threshold",),
            )
        if self.pseudo_labels not in get_args(Network):
            raise ConfigError(
                f'pseudo_labels must be "student" or "teacher", got {self.pseudo_labels!r}', fields=("pseudo_labels",)
            )
        if self.labelled_order not in get_args(LabelledOrder):
            raise ConfigError(
                f'labelled_order must be "random" or "epochs", got {self.labelled_order!r}', fields=("labelled_order",)
            )


class FixMatch(StudentTeacherMethod):
    """L = H(y, student(labelled)) + λ·mean(1[max p ≥ τ]·H(argmax p, student(strong))), p = softmax(labeller(weak)).

    The student takes labelled, weak and strong images in one forward pass, whoever labels, so that the two choices of
    `pseudo_labels` differ in nothing but the labels. (google's ablation with a labelling teacher leaves the weak
    images out of the student's pass, which also changes the batch norm statistics.)
    """

    teacher_buffers: Buffers = "copy"
    student: Encoder
    teacher: Encoder

    def __init__(self, config: FixMatchConfig, *, seed: int) -> None:
        super().__init__()
        self.config = config
        with initialised_from(seed):
            backbone = build_backbone(config.backbone, stem=config.stem)
            self.student = Encoder(backbone, linear_classifier(num_features(backbone), config.num_classes))
        use_cross_rank_batch_norm(self.student)
        self.teacher = cast(Encoder, make_teacher(self.student))
        self.train()

    def train(self, mode: bool = True) -> "FixMatch":
        """As in any module, but the teacher stays in eval mode: its statistics are copies of the student's."""
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, batch: Batch) -> StepResult:
        weak, strong = batch.views
        labelled, labels = batch.labelled_part()
        features = self.student.backbone(torch.cat([labelled, weak, strong]))
        logits = self.student.head(features).float()
        labelled_logits, weak_logits, strong_logits = logits.split([len(labelled), len(weak), len(strong)])
        if self.config.pseudo_labels == "teacher":
            weak_logits = self._teacher_logits(weak)
        supervised = F.cross_entropy(labelled_logits, labels)
        unsupervised, confident = pseudo_label_loss(strong_logits, weak_logits, threshold=self.config.threshold)
        metrics = {
            "supervised_loss": supervised.detach(),
            "unsupervised_loss": unsupervised.detach(),
            "mask_ratio": confident,
            "student_teacher_weight_distance": relative_weight_distance(self.student, self.teacher),
            **health_metrics(features),
        }
        return StepResult(supervised + self.config.unlabelled_weight * unsupervised, metrics)

    @torch.no_grad()
    def _teacher_logits(self, images: Tensor) -> Tensor:
        return self.teacher(images)  # type: ignore[no-any-return]


RECORD = MethodRecord(
    name="fixmatch",
    config=FixMatchConfig,
    build=FixMatch,
    views="fixmatch",
    trains_classifier=True,
    takes_uneven_shares=True,
)
