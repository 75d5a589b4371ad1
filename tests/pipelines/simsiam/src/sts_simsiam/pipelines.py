"""Names for `sts list`. Nothing at the top imports torch."""

from typing import TYPE_CHECKING

from sts_pipelines import named

if TYPE_CHECKING:
    from sts_pipelines import PipelineConfig, SweepConfig


@named("simsiam-stripes-sts", paper="-", hardware="1 CPU core", hours="0.01")
def simsiam_stripes() -> "PipelineConfig":
    """SimSiam with an STS teacher on drawn stripes; expect nothing of it but that it runs."""
    from sts_core import spatial_temporal_smoothing
    from sts_eval import NeighboursConfig
    from sts_methods import DataConfig, OptimizerConfig, TrainingConfig
    from sts_pipelines import ClusterConfig, EvaluationConfig, PipelineConfig
    from sts_simsiam.method import SimSiamConfig

    training = TrainingConfig(
        method=SimSiamConfig(backbone="test_resnet", dim=32, bottleneck=16),
        smoothing=spatial_temporal_smoothing(momentum=0.9, preserve_probability=0.5, buffers="keep"),
        data=DataConfig(dataset="stripes", views="crops", image_size=16),
        optimizer=OptimizerConfig(lr=0.1),
        global_batch_size=8,
        steps=3,
    )
    return PipelineConfig(
        name="simsiam-stripes-sts",
        training=training,
        cluster=ClusterConfig(num_workers=0, use_gpu=False),
        evaluation=EvaluationConfig(after_training=("knn", "spread"), knn=NeighboursConfig(ks=(5,))),
    )


@named("simsiam-stripes-p-by-m", paper="-", hardware="1 CPU core", hours="0.01", verb="sweep")
def simsiam_sweep() -> "SweepConfig":
    """Two trials of the same."""
    from sts_pipelines import GridConfig, SweepConfig

    return SweepConfig(pipeline=simsiam_stripes(), sweep=GridConfig(cells=((0.9, 0.0), (0.9, 0.5))))
