"""The work of a pipeline: what training and evaluation multiply, in images that ResNet-50 is trained on."""

from sts_methods import build_method, dataset_record
from sts_pipelines.catalog.hours import RESNET50_FLOPS, estimate_in_words
from sts_pipelines.config.kinds import AnyPipeline, base_of
from sts_pipelines.config.pipeline import ComparisonConfig, PipelineConfig
from sts_pipelines.config.sweep import SweepConfig
from sts_pipelines.diagnostics.fake_step import fake_step, forward_flops
from sts_pipelines.sweep.trials import num_trials


def estimate_of(config: AnyPipeline) -> str | None:
    """`about 38 days on 8 A100 or 120 on 8 RTX 2080 Ti`; None where the number of images is not known, or on CPUs."""
    pipeline = base_of(config)
    work = millions_of(config) if pipeline.cluster.use_gpu else None
    if work is None:
        return None
    half = pipeline.training.precision != "float32"
    return estimate_in_words(work, gpus=max(1, pipeline.cluster.num_workers), half=half)


def millions_of(config: AnyPipeline) -> float | None:
    """Million images' worth of work of all runs; None where nobody knows how many images there are."""
    one = _millions_of_one(base_of(config))
    return None if one is None else one * num_runs(config)


def num_runs(config: AnyPipeline) -> int:
    """How many trainings a pipeline, comparison or sweep is."""
    if isinstance(config, SweepConfig):
        return 1 if config.sweep.one_student else num_trials(config)
    return len(config.variants) if isinstance(config, ComparisonConfig) else 1


def _millions_of_one(pipeline: PipelineConfig) -> float | None:
    training, images = pipeline.training, dataset_record(pipeline.training.data.dataset).num_images
    if images is None:
        return None
    ratio = training.data.unlabelled_ratio if training.data.with_labels else 1
    steps = training.last_step(images // (training.global_batch_size * ratio))
    of_step, of_forward = flops_of(pipeline)
    of_training = steps * max(1, pipeline.cluster.num_workers) * training.accumulation * of_step
    of_evaluation = pipeline.evaluation.images_shown(images) * of_forward
    return (of_training + of_evaluation) / RESNET50_FLOPS / 1e6


def flops_of(pipeline: PipelineConfig) -> tuple[int, int]:
    """Of a worker's micro-batch in training, and of an image that evaluation shows to a backbone."""
    training = pipeline.training
    method = build_method(training.method, seed=training.seed)
    cost = fake_step(pipeline, method)
    return cost.flops, forward_flops(method.backbone("teacher"), training.data.image_size)
