"""A sweep over a field of one's own: BYOL whose two losses weigh differently, on handwritten digits.

python pipelines/examples/sweep.py                                                  two minutes on two CPU cores
sts sweep lopsided-digits --import sweep --sweep.over method.second=0,1 --sweep.seeds 0,1     the same, from this folder

Ends with a table of means over seeds, and a report. Run again it trains only what is missing.
"""

import sys
from dataclasses import dataclass

import torch

from sts_core import spatial_temporal_smoothing
from sts_methods import (
    Batch,
    Byol,
    ByolConfig,
    DataConfig,
    MethodRecord,
    OptimizerConfig,
    StepResult,
    TrainingConfig,
    cosine_distance,
    health_metrics,
    register_method,
)
from sts_pipelines import ClusterConfig, EvaluationConfig, PipelineConfig, named
from sts_pipelines.cli.main import main


@dataclass(frozen=True, kw_only=True)
class LopsidedConfig(ByolConfig):
    """BYOL's networks, and how its two losses weigh."""

    second: float = 1.0
    """Weight of the loss of the second view; 1 is BYOL."""


class Lopsided(Byol):
    """L = first view's term + second · second view's term."""

    config: LopsidedConfig

    def forward(self, batch: Batch) -> StepResult:
        one, two = batch.views
        z1, z2 = self.student(one), self.student(two)
        with torch.no_grad():
            t1, t2 = self.teacher(one), self.teacher(two)
        first = cosine_distance(self.student.predictor(z1), t2)
        second = cosine_distance(self.student.predictor(z2), t1)
        return StepResult(first + self.config.second * second, health_metrics(z1, t1))


register_method(MethodRecord(name="lopsided", config=LopsidedConfig, build=Lopsided, views="byol"))


@named("lopsided-digits", paper="-", hardware="1 CPU core", hours="0.01")
def lopsided_digits() -> PipelineConfig:
    """BYOL with unequal losses and an STS teacher on digits; nothing is known of what to expect."""
    training = TrainingConfig(
        method=LopsidedConfig(backbone="test_resnet", hidden_dim=128, projection_dim=32),
        smoothing=spatial_temporal_smoothing(momentum=0.9, preserve_probability=0.5, buffers="keep"),
        data=DataConfig(dataset="digits", image_size=12),
        optimizer=OptimizerConfig(lr=0.4),
        global_batch_size=64,
        steps=100,
    )
    return PipelineConfig(
        name="lopsided-digits",
        training=training,
        evaluation=EvaluationConfig(after_training=("knn",)),
        cluster=ClusterConfig(num_workers=0, use_gpu=False),
    )


if __name__ == "__main__":
    over = ["--sweep.over", "method.second=0,0.5,1", "--sweep.seeds", "0,1"]
    sys.exit(main(["sweep", "lopsided-digits", *over, *sys.argv[1:]]))
