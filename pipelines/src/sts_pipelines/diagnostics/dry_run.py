"""A dry run: the pipeline is built and takes a step on fake data, and Ray places the workers on a simulated machine."""

import math
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from sts_core import Smoother
from sts_methods import Batch, build_method, build_optimizer, dataset_record, method_record, warn_of_statistics
from sts_pipelines.config.kinds import AnyPipeline, base_of
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.config.sweep import SweepConfig
from sts_pipelines.diagnostics.fake_step import batch_of, fake_step, per_worker, view_sizes
from sts_pipelines.diagnostics.preflight import check_data, check_evaluations, examine_data, initial_weights
from sts_pipelines.diagnostics.work import estimate_of
from sts_pipelines.errors import UsageError
from sts_pipelines.launch.placement import fits
from sts_pipelines.sweep.trials import num_trials

GRANULARITIES = ("layer", "module", "channel", "neuron")


PLACEMENT_GPUS, PLACEMENT_CPUS = 8, 96


FAKE_BATCH = 4


SHARED_MEMORY = Path("/dev/shm")
BATCHES_PER_PROCESS = 2  # torch, DataLoader: prefetch_factor


def check_pipeline(config: AnyPipeline, *, placement: bool) -> str:
    """A text with all findings; raises where the pipeline could not run."""
    pipeline = base_of(config)
    check_evaluations(pipeline)
    if pipeline.training.data.root is not None:
        check_data(pipeline)
        examine_data(pipeline)
    method = build_method(pipeline.training.method, seed=pipeline.training.seed)
    trials = num_trials(config) if isinstance(config, SweepConfig) else 0
    one_student = isinstance(config, SweepConfig) and config.sweep.one_student
    bank = trials if one_student else len(pipeline.training.bank)
    lines = [
        *_initial_weights(pipeline),
        *_size(method),
        *_units(method),
        *_schedule(pipeline),
        *_memory(pipeline, method, bank=bank),
    ]
    lines += [*_shared_memory(pipeline), *_one_step(pipeline, method)]
    if trials:
        lines.append(f"sweep: {trials} trials")
    lines += [f"time, estimated: {line}" for line in estimate_of(config)]
    if placement:
        lines.append(_placement(pipeline))
    return "\n".join([f"{pipeline.name}", *lines, "check passed"])


def _initial_weights(pipeline: PipelineConfig) -> list[str]:
    origin = initial_weights(pipeline)
    if origin is None:
        return []
    warn_of_statistics(origin, pipeline.training.data.statistics)
    return [f"backbones start from {origin}"]


def _size(method: Any) -> list[str]:
    student, teacher = (sum(p.numel() for p in net.parameters()) for net in (method.student, method.teacher))
    backbone = sum(p.numel() for p in method.backbone("teacher").parameters())
    return [f"parameters: student {student:,}, teacher {teacher:,}, backbone {backbone:,}"]


def _units(method: Any) -> list[str]:
    """How many independent draws an update makes, by granularity."""
    named = dict(method.teacher.named_parameters())
    counts = {
        "layer": len(named),
        "module": len({name.rpartition(".")[0] for name in named}),
        "channel": sum(p.shape[0] if p.ndim else 1 for p in named.values()),
        "neuron": sum(p.numel() for p in named.values()),
    }
    return ["units: " + ", ".join(f"{counts[name]:,} {name}s" for name in GRANULARITIES)]


def _schedule(pipeline: PipelineConfig) -> list[str]:
    training, workers = pipeline.training, max(1, pipeline.cluster.num_workers)
    images_each = per_worker(pipeline)
    semi = training.data.with_labels
    extra = f" labelled and {images_each * training.data.unlabelled_ratio} unlabelled" if semi else ""
    lines = [
        f"batch: {training.global_batch_size} = {workers} workers x {training.accumulation} micro-batches "
        f"x {'at most ' if training.global_batch_size % (workers * training.accumulation) else ''}{images_each}{extra} "
        "images"
    ]
    images = dataset_record(training.data.dataset).num_images
    if images is None:
        epochs = training.stop_after_epochs or training.epochs
        return [*lines, f"steps: {f'{epochs} epochs of your data' if epochs else training.steps}"]
    consumed = training.global_batch_size * (training.data.unlabelled_ratio if semi else 1)
    per_epoch = images // consumed
    return [*lines, f"steps: {training.last_step(per_epoch):,} ({per_epoch:,} an epoch of {images:,} images)"]


def _memory(pipeline: PipelineConfig, method: Any, *, bank: int) -> list[str]:
    """What a step would hold on a GPU, without cuDNN's workspace; the workers share the teachers of a bank."""
    cost, workers = fake_step(pipeline, method), max(1, pipeline.cluster.num_workers)
    held = math.ceil(bank / workers)
    fixed = cost.fixed_bytes + 4 * held * sum(p.numel() for p in method.teacher.parameters())
    bank_part = f", {held} of the bank's {bank} teachers" if bank else ""
    return [
        f"memory per worker, estimated: {_gib(fixed + cost.passing_bytes)} ({_gib(fixed)} weights{bank_part} and "
        f"optimizer, {_gib(cost.passing_bytes)} activations)"
    ]


def _shared_memory(pipeline: PipelineConfig) -> list[str]:
    """What the batches of all loader processes take of /dev/shm, if all workers are on one machine."""
    training = pipeline.training
    ratio = training.data.unlabelled_ratio if training.data.with_labels else 1
    pixels = ratio * sum(size * size for size in view_sizes(pipeline))
    batches = BATCHES_PER_PROCESS * training.data.num_workers
    needed = 3 * pixels * batches * training.global_batch_size // training.accumulation
    if not needed or not SHARED_MEMORY.exists():
        return []
    free = shutil.disk_usage(SHARED_MEMORY).free
    remedy = f": a container needs --shm-size={math.ceil(needed / 2**30) + 1}g" if free < needed else ""
    return [f"shared memory of all loaders: {_gib(needed)}, {_gib(free)} are free here{remedy}"]


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"


def _one_step(pipeline: PipelineConfig, method: Any) -> list[str]:
    """Loss, gradient, optimizer step and teacher update on noise."""
    started = time.perf_counter()
    training = pipeline.training
    optimizer = build_optimizer(method, training.optimizer)
    smoother = Smoother(student=method.student, teacher=method.teacher, config=training.smoothing, seed=training.seed)
    batch = _noise(pipeline)
    loss = method(batch).loss
    if not loss.isfinite():
        raise UsageError(f"the loss of the first step must be finite, got {loss.item()}: check the method's numbers")
    loss.backward()
    optimizer.step()
    smoother.update()
    seconds = time.perf_counter() - started
    return [f"one step on {len(batch.indices)} fake images: loss {loss.item():.3f}, {seconds:.1f} s on this CPU"]


def _noise(pipeline: PipelineConfig) -> Batch:
    """A few images, of the shape that the data would have."""
    training = pipeline.training
    record = method_record(training.method)
    assert record is not None, "build_method knew it"
    count = max(FAKE_BATCH, record.smallest_batch(training.method))
    generator = torch.Generator().manual_seed(training.seed)
    return batch_of(pipeline, count, ratio=1, make=partial(torch.randn, generator=generator))


def _placement(pipeline: PipelineConfig) -> str:
    """Whether Ray can place the workers on a machine that claims to have 8 GPUs; nothing runs on it."""
    cluster = pipeline.cluster
    if cluster.num_workers == 0:
        return "placement: none, training runs in process"
    bundle: dict[str, float] = {"CPU": cluster.cpus_per_worker} | ({"GPU": 1.0} if cluster.use_gpu else {})
    wanted = f"{cluster.num_workers} workers with {' and '.join(f'{n:g} {kind}' for kind, n in bundle.items())} each"
    machine = f"a simulated machine with {PLACEMENT_GPUS} GPUs and {PLACEMENT_CPUS} CPUs"
    request = {"num_cpus": PLACEMENT_CPUS, "num_gpus": PLACEMENT_GPUS, "bundles": [bundle] * cluster.num_workers}
    if not fits(request):
        raise UsageError(
            f"{wanted} do not fit on {machine}: lower cluster.num-workers or cluster.cpus-per-worker, or leave the "
            "placement out (--no-placement) if your cluster is larger"
        )
    return f"placement: {wanted} fit on {machine}"
