"""The study `medium`: what digits cannot decide, on CIFAR-10, in the background over days.

Settings, which the pilot confirms or changes before the first run:

- The network is WRN-16-1 (0.2 M weights, CIFAR stem), the images are the first 10,000 for training and all 10,000 for
  testing, at 32 pixels, in float32: bfloat16 is twice as fast on some CPUs, but others do not have it.
- BYOL and MoCo see 15 passes over the images in batches of 256 (585 steps). m is the paper's for BYOL (.99: a horizon
  of 100 steps) and the same for MoCo, whose .999 would remember the beginning; p is the paper's, .7 and .5.
- SE is fine-grained and preserves with the p that equals TMA's m.
- Momenta are constant, but for three arms of BYOL with the cosine of the paper's code.
- Dose and response: TMA at m = .9, .97, .99 and .997, beside STS at m = .9 and .99 (m_eff = .97 and .997).
- Collapse: no smoothing and TMA for three times as long at a quarter of the learning rate, at it, and at four times.
- FixMatch has batches of 32 labelled and 128 unlabelled images for 2,500 steps, m = .99, p = .5: one student for all
  teachers where the student labels, one for each where the teacher does.
- "Corrupted" is the probe's mean top-1 over the 15 corruptions of CIFAR-10-C at severities 1, 3 and 5 of 500 test
  images; its excess over the accuracy on clean images says whether robustness follows accuracy.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sts_core import Granularity, Network, SmoothingConfig
from sts_core.files import replacing
from sts_methods import (
    ByolConfig,
    DataConfig,
    FixMatchConfig,
    ImageArrays,
    MoCoConfig,
    OptimizerConfig,
    TrainingConfig,
    open_source,
)
from sts_pipelines.catalog.configs import FIXMATCH_OPTIMIZER
from sts_pipelines.errors import UsageError
from sts_pipelines.study.claims import (
    by_claim,
    collapse_claims,
    cosine_claims,
    dose_claims,
    few_label_claims,
    robustness_claims,
    self_supervised_claims,
    teacher_label_claims,
)
from sts_pipelines.study.plan import Study, StudyRun

PILOT_SEEDS = (1, 2, 3)
SEEDS = tuple(range(101, 109))
COLLAPSE_SEEDS = SEEDS[:3]
LABELS = (20, 40, 250)
TRAIN, TEST, CORRUPTED = 10_000, 10_000, 500
STEPS, FIXMATCH_STEPS = 585, 2500
RATES = {"quarter": 0.1, "same": 0.4, "four": 1.6}
_NETWORK: dict[str, Any] = {"backbone": "wrn_16_1", "stem": "cifar"}
_COMMON: dict[str, Any] = {
    "checkpoint_every_steps": None,
    "verify_ranks_every_steps": None,
    "log_every_steps": 50,
}
_TEACHERS: dict[str, tuple[float, float, Granularity]] = {
    "none": (0.0, 0.0, "layer"),
    "tma": (0.99, 0.0, "layer"),
    "se-neuron": (0.0, 0.99, "neuron"),
}
_DOSES: dict[str, tuple[float, float, Granularity]] = {
    "tma-0.9": (0.9, 0.0, "layer"),
    "tma-0.97": (0.97, 0.0, "layer"),
    "sts-0.9": (0.9, 0.7, "layer"),
}


@dataclass(frozen=True, kw_only=True)
class Images:
    """The part of CIFAR-10 that is studied."""

    path: Path
    digest: str

    def data(self, views: str, num_labels: int | None = None) -> DataConfig:
        data = DataConfig(dataset="arrays", root=str(self.path), image_size=32, views=views)
        return data if num_labels is None else replace(data, num_labels=num_labels, unlabelled_ratio=4)


def medium_study(images: Images, seeds: tuple[int, ...] = SEEDS) -> Study:
    """All runs, seed after seed; the long ones for the first seeds only."""
    methods = {"byol-cifar10": "BYOL", "moco-cifar10": "MoCo"}
    labels = {f"fixmatch-cifar10-{count}": count for count in LABELS}
    return Study(
        name="medium",
        title="the paper's claims on CIFAR-10",
        runs=[replace(run, data_digest=images.digest) for seed in seeds for run in _runs(images, seed)],
        comparisons=by_claim(
            (
                *(c for c in self_supervised_claims(methods) if "se-layer" not in (c.plus[0][1], c.minus[0][1])),
                *dose_claims("byol-cifar10"),
                *cosine_claims("byol-cifar10"),
                *robustness_claims(methods),
                *collapse_claims({f"byol-cifar10-{name}": rate for name, rate in RATES.items()}, "byol-cifar10"),
                *few_label_claims(labels),
                *teacher_label_claims("fixmatch-cifar10-40", 40),
            )
        ),
        settings=(__doc__ or "").partition("\n\n")[2].strip(),
        budget_hours=40.0,
    )


def pilot_study(images: Images) -> Study:
    """What the seeds needed, the hours and the accuracies depend on: three CPU hours."""
    whole = medium_study(images, PILOT_SEEDS)
    arms = ("untrained", "tma", "sts", "control", "bank")
    experiments = ("byol-cifar10", "moco-cifar10", "fixmatch-cifar10-40")
    runs = [run for run in whole.runs if run.teacher in arms and run.experiment in experiments]
    return replace(whole, runs=runs)


def _runs(images: Images, seed: int) -> Iterator[StudyRun]:
    for method, p in (("byol", 0.7), ("moco", 0.5)):
        experiment = f"{method}-cifar10"
        idle = training(images, method, smoothing(0.0, 0.0), seed=seed, steps=39, lr=0.0)
        yield StudyRun(experiment=experiment, teacher="untrained", training=idle)
        for name, teacher in teachers(p, doses=method == "byol").items():
            shown = CORRUPTED if name in ("tma", "sts", "control") else 0
            run = training(images, method, teacher, seed=seed)
            yield StudyRun(experiment=experiment, teacher=name, training=run, corruptions=shown)
            if method == "byol" and shown:
                rising = replace(run, momentum_schedule="cosine")
                yield StudyRun(experiment=experiment, teacher=f"{name}-cosine", training=rising)
    yield from _fixmatch_runs(images, seed)
    if seed in COLLAPSE_SEEDS:
        yield from _collapse_runs(images, seed)


def _collapse_runs(images: Images, seed: int) -> Iterator[StudyRun]:
    for rate, lr in RATES.items():
        for name in ("none", "tma"):
            run = training(images, "byol", smoothing(*_TEACHERS[name]), seed=seed, steps=3 * STEPS, lr=lr)
            yield StudyRun(experiment=f"byol-cifar10-{rate}", teacher=name, training=run)


def _fixmatch_runs(images: Images, seed: int) -> Iterator[StudyRun]:
    for labels in LABELS:
        run = fixmatch(images, labels, seed=seed)
        yield StudyRun(experiment=f"fixmatch-cifar10-{labels}", teacher="bank", training=run)
    for name in ("tma", "sts", "control"):
        run = fixmatch(images, 40, seed=seed, labeller="teacher", teacher=name)
        yield StudyRun(experiment="fixmatch-cifar10-40-teacher", teacher=name, training=run)


def smoothing(
    m: float, p: float, granularity: Granularity = "layer", buffers: Literal["keep", "copy"] = "keep"
) -> SmoothingConfig:
    return SmoothingConfig(momentum=m, preserve_probability=p, granularity=granularity, buffers=buffers)


def teachers(p: float, *, doses: bool = False, buffers: Literal["keep", "copy"] = "keep") -> dict[str, SmoothingConfig]:
    """The arms of a method by name."""
    sts = smoothing(0.99, p, buffers=buffers)
    named = _TEACHERS | (_DOSES if doses else {})
    found = {name: smoothing(*values, buffers=buffers) for name, values in named.items()}
    return found | {"sts": sts, "control": sts.matched_moving_average()}


def training(
    images: Images, method: str, teacher: SmoothingConfig, *, seed: int, steps: int = STEPS, lr: float | None = None
) -> TrainingConfig:
    """BYOL or MoCo."""
    byol = method == "byol"
    rate = (0.4 if byol else 0.06) if lr is None else lr
    return TrainingConfig(
        method=ByolConfig(**_NETWORK, hidden_dim=512, projection_dim=128)
        if byol
        else MoCoConfig(**_NETWORK, dim=128, queue_size=4096, bn_groups=8),
        smoothing=teacher,
        data=images.data(method),
        optimizer=OptimizerConfig(lr=rate, warmup_epochs=1.0 if byol and rate else 0.0),
        global_batch_size=256,
        steps=steps,
        seed=seed,
        track_drift=True,
        **_COMMON,
    )


def fixmatch(
    images: Images, labels: int, *, seed: int, labeller: Network = "student", teacher: str = "tma"
) -> TrainingConfig:
    """FixMatch with a bank of all teachers, or with one that labels."""
    bank = teachers(0.5, buffers="copy")
    return TrainingConfig(
        method=FixMatchConfig(**_NETWORK, num_classes=10, pseudo_labels=labeller),
        smoothing=bank[teacher],
        data=images.data("fixmatch", labels),
        optimizer=FIXMATCH_OPTIMIZER,
        global_batch_size=32,
        steps=FIXMATCH_STEPS,
        seed=seed,
        bank=bank if labeller == "student" else {},
        **_COMMON,
    )


def cifar_part(file: Path, work: Path) -> Images:
    """The studied images of an npz file as one of its own, and a digest of them."""
    train, test = (open_source("arrays", str(file), split, image_size=32) for split in ("train", "test"))
    if train.labels is None or test.labels is None or len(train) < TRAIN or len(test) < TEST:
        raise UsageError(
            f"--cifar10 needs {TRAIN} training and {TEST} test images with labels, got {len(train)} and {len(test)}: "
            f"write CIFAR-10 as x_train, y_train, x_test, y_test into one npz file"
        )
    assert isinstance(train, ImageArrays)
    assert isinstance(test, ImageArrays)
    parts = {"train": (train, TRAIN), "test": (test, TEST)}
    arrays = {f"x_{name}": s.images[:n].permute(0, 2, 3, 1).numpy() for name, (s, n) in parts.items()}
    arrays |= {f"y_{name}": s.labels[:n] for name, (s, n) in parts.items() if s.labels is not None}
    digest = hashlib.sha256(b"".join(arrays[name].tobytes() for name in sorted(arrays))).hexdigest()[:8]
    path = work / f"cifar10-{digest}.npz"
    if not path.is_file():
        work.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial, partial.open("wb") as out:
            np.savez(out, **arrays)  # type: ignore[arg-type]  # the stub types any keyword as bool
    return Images(path=path, digest=digest)
