"""A pipeline measured by a few of its own steps, in this process: images per second, phases, memory, and the hours."""

import contextlib
import math
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from sts_core import StsError
from sts_methods import (
    DataConfig,
    LocalRuntime,
    TrainingConfig,
    build_method,
    build_training_data,
    dataset_record,
    default_device,
    fit,
    format_seconds,
)
from sts_pipelines.config.kinds import AnyPipeline, base_of
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.diagnostics.fake_step import per_worker
from sts_pipelines.diagnostics.preflight import check_data
from sts_pipelines.diagnostics.work import num_runs
from sts_pipelines.errors import UsageError
from sts_pipelines.evaluation.duration import seconds_of_evaluation
from sts_pipelines.terminal import roughly

WARM_UP = 5
NUM_PHOTOS = 16
PHOTO_SIZE = (375, 500, 3)  # of ImageNet's photographs, about


def bench(config: AnyPipeline, *, num_steps: int, synthetic: bool) -> str:
    """The text that `sts bench` prints; nothing stays on the disk."""
    pipeline = base_of(config)
    if not synthetic:
        _check_data(pipeline)
    with tempfile.TemporaryDirectory(prefix="sts-bench-") as name:
        training = _of_one_worker(pipeline)
        if synthetic:
            training = replace(training, data=_made_up(training, Path(name)))
        method, device = build_method(training.method, seed=training.seed), default_device()
        data = build_training_data(
            training.data,
            seed=training.seed,
            global_batch_size=training.global_batch_size,
            accumulation=training.accumulation,
            device=device,
            labelled_order=getattr(training.method, "labelled_order", "epochs"),
        )
        total = training.last_step(data.steps_per_epoch)
        clock = _Clock(_measurable(num_steps, total=total, device=device, name=pipeline.name), device)
        with contextlib.suppress(_EnoughError):
            fit(training, LocalRuntime(Path(name) / "run", progress=False), method=method, data=data, ended=clock.ended)
    steps, num_train = _whole(pipeline, data.num_samples, synthetic=synthetic)
    evaluation = seconds_of_evaluation(
        pipeline, method.backbone("teacher"), num_train=num_train, batch_size=per_worker(pipeline)
    )
    images = training.global_batch_size * (1 + training.data.unlabelled_ratio if training.data.with_labels else 1)
    return "\n".join(_told(config, clock, images=images, steps=steps, evaluation=evaluation, synthetic=synthetic))


def _measurable(asked: int, *, total: int, device: torch.device, name: str) -> int:
    """The steps asked for, or as many as a run of `total` leaves after the warm-up, and on a GPU before phases."""
    left = total - WARM_UP
    num = min(asked, left if device.type == "cpu" else left - math.ceil(left / 11))
    if num < 1:
        least = WARM_UP + (1 if device.type == "cpu" else 2)
        raise UsageError(
            f"a bench takes at least {least} steps, {WARM_UP} of them to warm up, but {name} is over after {total}: "
            "raise --steps or --epochs"
        )
    return num


def _check_data(pipeline: PipelineConfig) -> None:
    try:
        check_data(pipeline)
    except (StsError, OSError) as error:
        raise UsageError(f"{error}; --synthetic measures with images that are made up") from error


def _of_one_worker(pipeline: PipelineConfig) -> TrainingConfig:
    """What one of the workers computes, without the others."""
    training, workers = pipeline.training, max(1, pipeline.cluster.num_workers)
    method = training.method
    if groups := getattr(method, "bn_groups", None):  # of the global batch
        method = replace(method, bn_groups=max(1, groups // workers))  # type: ignore[type-var]
    own = per_worker(pipeline) * training.accumulation
    return replace(
        training, method=method, global_batch_size=own, checkpoint_every_steps=None, checkpoint_every_minutes=None,
        track_drift=False,
    )  # fmt: skip


def _made_up(training: TrainingConfig, folder: Path) -> DataConfig:
    """Noise in files of a photograph's size in place of files; the embedded digits in place of images in memory."""
    data = training.data
    if not dataset_record(data.dataset).in_files:
        labels = None if data.num_labels is None else min(data.num_labels, 100)
        return replace(data, dataset="digits", root=None, num_labels=labels)
    photos, drawn = folder / "train" / "noise", np.random.default_rng(0)
    photos.mkdir(parents=True)
    for number in range(2 * max(training.global_batch_size, NUM_PHOTOS)):
        path = photos / f"{number}.jpg"
        if number < NUM_PHOTOS:  # of small spots, which weigh as much as a photograph of that size
            spots = drawn.integers(0, 256, (PHOTO_SIZE[0] // 5, PHOTO_SIZE[1] // 5, 3), dtype=np.uint8)
            Image.fromarray(spots).resize(PHOTO_SIZE[1::-1], Image.Resampling.BILINEAR).save(path, quality=95)
        else:
            path.hardlink_to(photos / f"{number % NUM_PHOTOS}.jpg")
    return replace(data, dataset="imagefolder", root=str(folder))


class _EnoughError(Exception):
    """All that was to be measured has been."""


@dataclass
class _Clock:
    """Told of the end of every phase; it waits for a GPU only at the first and last step, and in the last tenth."""

    num_steps: int
    device: torch.device
    seconds: dict[str, float] = field(default_factory=dict)
    """By phase, over the steps counted in `phase_steps`."""
    phase_steps: int = 0
    step: int = -WARM_UP
    started: float = 0.0
    total: float = 0.0
    """Seconds of the steps counted in `steps`."""
    steps: int = 0

    def __post_init__(self) -> None:
        self._since = time.perf_counter()
        self._apart = 0 if self.device.type == "cpu" else self.num_steps  # from here on phases are timed apart

    def ended(self, phase: str) -> None:
        """Count the phase; raises when there have been enough steps."""
        if self.step >= self._apart:
            self._wait()
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - self._since
            self._since = time.perf_counter()
        if phase == "end of step":
            self._end_step()

    def _end_step(self) -> None:
        self.step += 1
        if self.step == 0:
            self._wait()
            self.started = time.perf_counter()
        if 0 < self.step <= self.num_steps:
            if self.step == self.num_steps:
                self._wait()
            self.total, self.steps = time.perf_counter() - self.started, self.step
        if self.step > self._apart:
            self.phase_steps = self.step - self._apart
        self._since = time.perf_counter()
        if self.step >= self.num_steps + (0 if self._apart == 0 else max(1, self.num_steps // 10)):
            raise _EnoughError

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _whole(pipeline: PipelineConfig, found: int, *, synthetic: bool) -> tuple[int, int]:
    """Steps and images of the whole run."""
    training = pipeline.training
    known = dataset_record(training.data.dataset).num_images
    num = (known or found) if synthetic else found
    ratio = training.data.unlabelled_ratio if training.data.with_labels else 1
    return training.last_step(max(1, num // (training.global_batch_size * ratio))), num


def _told(
    config: AnyPipeline, clock: _Clock, *, images: int, steps: int, evaluation: float, synthetic: bool
) -> Sequence[str]:
    pipeline, device = base_of(config), clock.device
    data, workers = pipeline.training.data, max(1, pipeline.cluster.num_workers)
    step, runs = clock.total / clock.steps, num_runs(config)
    phases = {name: 1e3 * seconds / max(clock.phase_steps, 1) for name, seconds in clock.seconds.items()}
    waited = phases.get("input", 0.0) / max(sum(phases.values()), 1e-9)
    whole = steps * step + evaluation
    lines = [
        f"{pipeline.name}: {clock.steps} step{'s' * (clock.steps > 1)} on {_place(device)}, after {WARM_UP} to warm up",
        *([f"on images that are made up, not on {data.dataset} (--synthetic)"] if synthetic else []),
        f"images/s   {images / step:,.1f} in steps of {images:,}",
        f"step       {1e3 * step:,.1f} ms: " + ", ".join(f"{name} {ms:,.1f}" for name, ms in phases.items()),
        f"waiting    {waited:.0%} of the time for input",
        f"memory     {_memory(device)}",
        f"whole run  {roughly(whole)}: {steps:,} steps {format_seconds(steps * step)}, "
        f"evaluation {format_seconds(evaluation)}",
    ]
    if runs > 1:
        lines.append(f"all runs   {roughly(whole * runs)}: {runs} of them, one after the other")
    if workers > 1:
        lines.append(f"for {workers} workers, each like this one, whose exchanges cost nothing")
    return lines


def _place(device: torch.device) -> str:
    threads = torch.get_num_threads()
    cpu = f"{threads} CPU thread{'s' * (threads > 1)}"
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu


def _memory(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{torch.cuda.max_memory_allocated(device) / 2**30:.2f} GiB of tensors at their peak"
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return f"{most / 2**30:.2f} GiB, the process at its peak"
