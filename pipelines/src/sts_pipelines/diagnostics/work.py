"""The work of a pipeline, for the model of catalog/hours.py: what training and evaluation multiply, launch and send.

`python -m sts_pipelines.diagnostics.work` writes the hours of the catalog (`ci/bench hours`).
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace

from sts_core import Precision
from sts_methods import build_method, dataset_record, method_record
from sts_pipelines.catalog import CATALOG
from sts_pipelines.catalog.hours import COUNTED, FILE, GPUS, RESNET50_FLOPS, Counted, Gpu, Hours, Step, Work
from sts_pipelines.config.kinds import AnyPipeline, base_of
from sts_pipelines.config.pipeline import ComparisonConfig, PipelineConfig
from sts_pipelines.config.sweep import SweepConfig
from sts_pipelines.diagnostics.fake_step import fake_step, forward_flops
from sts_pipelines.sweep.trials import num_trials

UNKNOWN_IMAGES = 1000
"""The hours of a pipeline are those for so many images where its dataset does not say how many there are."""
FLOAT32_BYTES = 4
Flops = Callable[[PipelineConfig], tuple[int, int, int]]


def flops_of(pipeline: PipelineConfig) -> tuple[int, int, int]:
    """Of a worker's micro-batch in training and of an image that evaluation shows; and how many weights are trained."""
    training = pipeline.training
    method = build_method(training.method, seed=training.seed)
    trained = sum(parameter.numel() for parameter in method.parameters() if parameter.requires_grad)
    cost = fake_step(pipeline, method)
    return cost.flops, forward_flops(method.backbone("teacher"), training.data.image_size), trained


def work_of(config: AnyPipeline, flops: Flops = flops_of) -> Work:
    """All that a pipeline, comparison or sweep asks for."""
    pipeline = base_of(config)
    training, images = pipeline.training, num_images(pipeline) or UNKNOWN_IMAGES
    ratio = training.data.unlabelled_ratio if training.data.with_labels else 1
    num_steps = training.last_step(images // (training.global_batch_size * ratio))
    of_step, of_forward, trained = flops(pipeline)
    return Work(
        step=_step(pipeline, of_step, trained),
        num_steps=num_steps,
        evaluation=_evaluation(pipeline, images, of_forward),
        runs=num_runs(config),
    )


def num_images(pipeline: PipelineConfig) -> int | None:
    """Training images, if the dataset's name says it."""
    return dataset_record(pipeline.training.data.dataset).num_images


def num_runs(config: AnyPipeline) -> int:
    """How many trainings a pipeline, comparison or sweep is."""
    if isinstance(config, SweepConfig):
        return 1 if config.sweep.one_student else num_trials(config)
    return len(config.variants) if isinstance(config, ComparisonConfig) else 1


def estimate_of(config: AnyPipeline) -> list[str]:
    """`about 38 days on 8 A100 or 120 on 8 RTX 2080 Ti`, likewise in bfloat16, and what bounds a step; none on CPUs."""
    if not base_of(config).cluster.use_gpu:
        return []
    found = flops_of(base_of(config))
    work, estimate = _estimated(config, lambda pipeline: found)
    lines = [estimate.in_words()]
    if not work.step.half:
        _, shorter = _estimated(in_precision(config, "bfloat16"), lambda pipeline: found)
        lines.append(f"{shorter.in_words()} with --precision bfloat16")
    return [*lines, *(_bound(work.step, gpu) for gpu in GPUS)]


def _estimated(config: AnyPipeline, flops: Flops) -> tuple[Work, Hours]:
    pipeline, work = base_of(config), work_of(config, flops)
    per = UNKNOWN_IMAGES if num_images(pipeline) is None else None
    hours = [float(f"{work.hours(gpu):.4g}") for gpu in GPUS]
    bound = [work.step.bound(gpu) for gpu in GPUS]
    return work, Hours(gpus=max(1, pipeline.cluster.num_workers), hours=hours, bound=bound, per_images=per)


def in_precision(config: AnyPipeline, precision: Precision) -> AnyPipeline:
    """The same, trained in another precision."""
    if isinstance(config, PipelineConfig):
        return replace(config, training=replace(config.training, precision=precision))
    pipeline = replace(config.pipeline, training=replace(config.pipeline.training, precision=precision))
    return replace(config, pipeline=pipeline)


def estimates_of_the_catalog() -> dict[str, dict[str, Hours]]:
    """What hours.json holds: of all pipelines that need GPUs."""
    counted: dict[str, tuple[int, int, int]] = {}  # the same for all runs of a network and batch

    def once(pipeline: PipelineConfig) -> tuple[int, int, int]:
        training = pipeline.training
        key = f"{training.method} {training.data.views} {training.global_batch_size / training.accumulation}"
        if key not in counted:
            counted[key] = flops_of(pipeline)
        return counted[key]

    built = {name: entry.build() for name, entry in CATALOG.items()}
    return {
        name: {"own": _estimated(config, once)[1], "bfloat16": _estimated(in_precision(config, "bfloat16"), once)[1]}
        for name, config in built.items()
        if base_of(config).cluster.use_gpu
    }


def _step(pipeline: PipelineConfig, flops: int, trained: int) -> Step:
    training, workers = pipeline.training, max(1, pipeline.cluster.num_workers)
    half, micro_batches = training.precision != "float32", training.accumulation
    counted, alone = counted_of(pipeline), workers == 1
    operations = collectives = 0
    sent = float(FLOAT32_BYTES * trained)
    if counted is not None:
        passes = counted.data + counted.gradients + half * counted.casts
        operations, collectives = counted.update + micro_batches * passes, micro_batches * counted.collectives
        sent = 1e6 * counted.megabytes
    return Step(
        images=micro_batches * flops / RESNET50_FLOPS,
        half=half,
        operations=operations,
        collectives=0 if alone else collectives,
        sent_bytes=0.0 if alone else sent,
        decoded=_per_core(pipeline, training.global_batch_size, training.data.num_workers),
    )


def counted_of(pipeline: PipelineConfig) -> Counted | None:
    """What a null GPU has counted, if it has for this method and network."""
    method = pipeline.training.method
    record = method_record(method)
    counted = None if record is None else COUNTED.get(record.name)
    return counted if counted is not None and method.backbone in counted.backbones else None


def _evaluation(pipeline: PipelineConfig, images: int, flops: int) -> Step:
    settings, workers = pipeline.evaluation, max(1, pipeline.cluster.num_workers)
    shown = settings.images_shown(images)
    return Step(
        images=shown * flops / RESNET50_FLOPS / workers,
        half=settings.features.precision != "float32",
        decoded=_per_core(pipeline, shown, settings.features.num_workers),
    )


def _per_core(pipeline: PipelineConfig, images: float, processes: int) -> float:
    """The images that each core loads; 0 where they lie in memory and no process loads them."""
    workers = max(1, pipeline.cluster.num_workers)
    return images / workers / min(processes, pipeline.cluster.cpus_per_worker) if processes else 0.0


def _bound(step: Step, gpu: Gpu) -> str:
    """`a step on A100 is bound by arithmetic: arithmetic 91 ms, launches 23, exchange 5, images 7`."""
    seconds = step.seconds(gpu)
    return f"a step on {gpu.name} is bound by {step.bound(gpu)}: {', '.join(_parts(step, seconds))} ms"


def _parts(step: Step, seconds: dict[str, float]) -> Iterator[str]:
    for name, value in seconds.items():
        unknown = name == "launches" and not step.operations
        yield f"{name} not counted" if unknown else f"{name} {1e3 * value:.2g}"


def main() -> None:
    found = {
        name: {kind: asdict(one) for kind, one in kinds.items()} for name, kinds in estimates_of_the_catalog().items()
    }
    lines = [f'  "{name}": {json.dumps(kinds)}' for name, kinds in found.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
