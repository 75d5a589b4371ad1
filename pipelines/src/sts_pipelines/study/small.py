"""The study `small`: every claim of the paper that two CPU cores can test, on real images.

Settings were chosen by a pilot with seed 0, which the study does not use: short enough for two cores, and with room
between an untrained network and a perfect one. What was scaled down, and why:

- Teachers must forget within the training. The paper's BYOL teacher has a horizon 1/(1-m) of 100 of 1,000,000 steps;
  ours, with m = .9, 10 of 154. MoCo's horizon (m = .999: 1,000 steps) is four times the age of its queue (256 steps);
  ours, with m = .97, is four times the age of a queue of 8 steps. FixMatch has m = .95 for 250 steps.
- p is the paper's, .7 for BYOL and .5 for MoCo and FixMatch: the ratio between STS and TMA is what is tested.
- SE preserves with the p that equals TMA's m, so that both follow the student equally fast.
- Momenta are constant. The paper's BYOL code raises m to 1 along a cosine, which SE, having no m, cannot follow.
- The learning rate of BYOL on digits is high (1.2 per 256 images): in the pilot it is there that smoothing matters. A
  second experiment has .4, where in the pilot no smoothing did as well as any.
- The network is timm's test_resnet (0.4 M weights in four stages, ImageNet's stem, which keeps a sixteenth of the
  places of an image), the images are digits at 12 pixels (they have 8) or 4,000 of CIFAR-10 at 16: cheap, and far from
  saturated, with 66 % linear top-1 on digits before training and 87 % after.
"""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sts_core import Granularity, Network, SmoothingConfig
from sts_core.files import replacing
from sts_methods import DataConfig, FixMatchConfig, TrainingConfig, open_source
from sts_pipelines.catalog.configs import byol_small, fixmatch_small, moco_small
from sts_pipelines.errors import UsageError
from sts_pipelines.study.plan import Study, StudyRun

SEEDS = (1, 2, 3, 4, 5)
DIGIT_TEST = 359
CIFAR_TRAIN, CIFAR_TEST = 4000, 2000
GRID_MOMENTA = (0.0, 0.9, 0.98)
GRID_PROBABILITIES = (0.0, 0.5, 0.9, 0.97)
DIGIT_LABELS = (10, 20, 40, 100)
CIFAR_LABELS = (40, 250)

_BYOL: dict[str, TrainingConfig] = {
    "digits": byol_small("study", dataset="digits", m=0.0, p=0.0).training,
    "arrays": byol_small("study", dataset="cifar10", m=0.0, p=0.0).training,
}
_MOCO = moco_small("study", dataset="digits", m=0.0, p=0.0).training
_FIXMATCH = fixmatch_small("study", dataset="digits", labels=DIGIT_LABELS[0], m=0.0, p=0.0).training
DIGITS_BYOL, DIGITS_MOCO, DIGITS_FIXMATCH = _BYOL["digits"].data, _MOCO.data, _FIXMATCH.data
_QUIET: dict[str, Any] = {
    "momentum_schedule": "constant",
    "checkpoint_every_steps": None,
    "verify_ranks_every_steps": None,
    "log_every_steps": 50,
}


def teacher(m: float, p: float, granularity: Granularity = "layer", *, copy: bool = False) -> SmoothingConfig:
    """FixMatch's teachers take the student's batch statistics (copy), the others keep their own."""
    return SmoothingConfig(
        momentum=m, preserve_probability=p, granularity=granularity, buffers="copy" if copy else "keep"
    )


def teachers(m: float, p: float) -> dict[str, SmoothingConfig]:
    """What BYOL and MoCo are compared with: STS(m, p), its control, and TMA and SE, which are equally fast."""
    sts = teacher(m, p)
    return {
        "none": teacher(0.0, 0.0),
        "tma": teacher(m, 0.0),
        "se-layer": teacher(0.0, m, "layer"),
        "se-channel": teacher(0.0, m, "channel"),
        "se-neuron": teacher(0.0, m, "neuron"),
        "sts": sts,
        "control": sts.matched_moving_average(),
    }


BYOL_TEACHERS, MOCO_TEACHERS = teachers(0.9, 0.7), teachers(0.97, 0.5)  # p: paper


def fixmatch_teachers() -> dict[str, SmoothingConfig]:
    sts = teacher(0.95, 0.5, copy=True)  # p: paper
    return {
        "none": teacher(0.0, 0.0, copy=True),
        "tma": teacher(0.95, 0.0, copy=True),
        "se-layer": teacher(0.0, 0.95, "layer", copy=True),
        "se-neuron": teacher(0.0, 0.95, "neuron", copy=True),
        "sts": sts,
        "control": sts.matched_moving_average(),
    }


def byol(
    data: DataConfig, smoothing: SmoothingConfig, *, seed: int, steps: int | None = None, lr: float | None = None
) -> TrainingConfig:
    """The catalog's small BYOL on `data`, with its own steps and learning rate unless others are given."""
    return _trained(_BYOL[data.dataset], data, smoothing, seed=seed, steps=steps, lr=lr)


def moco(
    data: DataConfig, smoothing: SmoothingConfig, *, seed: int, steps: int | None = None, lr: float | None = None
) -> TrainingConfig:
    """The catalog's MoCo of digits."""
    return _trained(_MOCO, data, smoothing, seed=seed, steps=steps, lr=lr)


def _trained(
    base: TrainingConfig,
    data: DataConfig,
    smoothing: SmoothingConfig,
    *,
    seed: int,
    steps: int | None,
    lr: float | None,
) -> TrainingConfig:
    lr = base.optimizer.lr if lr is None else lr
    optimizer = replace(base.optimizer, lr=lr, warmup_epochs=base.optimizer.warmup_epochs if lr else 0.0)
    own: dict[str, Any] = {"smoothing": smoothing, "data": data, "seed": seed, "steps": steps or base.steps}
    return replace(base, optimizer=optimizer, track_drift=True, **own, **_QUIET)


def fixmatch(
    data: DataConfig,
    smoothing: SmoothingConfig,
    *,
    seed: int,
    steps: int | None = None,
    labeller: Network = "student",
) -> TrainingConfig:
    """The catalog's small FixMatch.

    With labels by the student the teacher only watches, so one run serves all teachers: they are its bank.
    """
    assert isinstance(_FIXMATCH.method, FixMatchConfig)
    method = replace(_FIXMATCH.method, pseudo_labels=labeller)
    own: dict[str, Any] = {"smoothing": smoothing, "data": data, "seed": seed, "steps": steps or _FIXMATCH.steps}
    bank = fixmatch_teachers() if labeller == "student" else {}
    return replace(_FIXMATCH, method=method, bank=bank, **own, **_QUIET)


CIFAR_STEPS, CIFAR_FIXMATCH_STEPS = 248, 400  # 8 epochs of 4,000 images
GENTLE_LR = 0.4
ROBUST = ("tma", "sts", "control")


def digits_runs(seed: int) -> list[StudyRun]:
    """BYOL and MoCo on digits."""
    runs: list[StudyRun] = []
    for method, data, smoothings in ((byol, DIGITS_BYOL, BYOL_TEACHERS), (moco, DIGITS_MOCO, MOCO_TEACHERS)):
        experiment = f"{data.views}-digits"
        runs.append(_untrained(experiment, method(data, teacher(0.0, 0.0), seed=seed, steps=22, lr=0.0)))
        for name, smoothing in smoothings.items():
            training = method(data, smoothing, seed=seed)
            shown = DIGIT_TEST if name in ROBUST else 0
            runs.append(StudyRun(experiment=experiment, teacher=name, training=training, corruptions=shown))
    return runs


def gentle_runs(seed: int) -> list[StudyRun]:
    """BYOL on digits at a third of the learning rate."""
    start = byol(DIGITS_BYOL, teacher(0.0, 0.0), seed=seed, steps=22, lr=0.0)
    runs = [_untrained("byol-digits-gentle", start)]
    for name in ("none", "tma", "sts", "control"):
        training = byol(DIGITS_BYOL, BYOL_TEACHERS[name], seed=seed, lr=GENTLE_LR)
        runs.append(StudyRun(experiment="byol-digits-gentle", teacher=name, training=training))
    return runs


def fixmatch_digits_runs(seed: int) -> list[StudyRun]:
    runs: list[StudyRun] = []
    for labels in DIGIT_LABELS:
        runs += _fixmatch_runs(f"fixmatch-digits-{labels}", replace(DIGITS_FIXMATCH, num_labels=labels), seed)
    return runs


def grid_runs(seed: int) -> list[StudyRun]:
    """The p x m plane of BYOL on digits; cells that other experiments have too are measured once."""
    known = {smoothing: name for name, smoothing in BYOL_TEACHERS.items()}
    return [
        StudyRun(
            experiment="byol-digits-grid",
            teacher=f"m{m:g}-p{p:g}",
            training=byol(DIGITS_BYOL, teacher(m, p), seed=seed),
            corruptions=DIGIT_TEST if known.get(teacher(m, p)) in ROBUST else 0,
        )
        for m in GRID_MOMENTA
        for p in GRID_PROBABILITIES
    ]


def cifar_runs(root: Path, images: str, seed: int) -> list[StudyRun]:
    """BYOL and FixMatch on a part of CIFAR-10 for one seed."""
    data = DataConfig(dataset="arrays", root=str(root), image_size=16, views="byol")
    start = byol(data, teacher(0.0, 0.0), seed=seed, steps=31, lr=0.0)
    runs = [_untrained("byol-cifar10", start, images)]
    for name in ("none", "tma", "sts", "control"):
        training = byol(data, BYOL_TEACHERS[name], seed=seed, steps=CIFAR_STEPS, lr=GENTLE_LR)
        shown = 500 if name in ROBUST else 0
        runs.append(
            StudyRun(experiment="byol-cifar10", teacher=name, training=training, corruptions=shown, data_digest=images)
        )
    for labels in CIFAR_LABELS:
        few = replace(data, views="fixmatch", num_labels=labels, unlabelled_ratio=4)
        runs += _fixmatch_runs(f"fixmatch-cifar10-{labels}", few, seed, steps=CIFAR_FIXMATCH_STEPS, images=images)
    return runs


def _fixmatch_runs(
    experiment: str, data: DataConfig, seed: int, *, steps: int | None = None, images: str = ""
) -> list[StudyRun]:
    """One run in which the student labels, for all teachers; at few labels also runs in which the teacher does."""
    tma = fixmatch_teachers()["tma"]
    bank = fixmatch(data, tma, seed=seed, steps=steps)
    runs = [StudyRun(experiment=experiment, teacher="bank", training=bank, data_digest=images)]
    if data.num_labels in TEACHER_LABELS[data.dataset]:
        for name in ("tma", "sts", "control"):
            training = fixmatch(data, fixmatch_teachers()[name], seed=seed, steps=steps, labeller="teacher")
            run = StudyRun(experiment=f"{experiment}-teacher", teacher=name, training=training, data_digest=images)
            runs.append(run)
    return runs


TEACHER_LABELS: dict[str, tuple[int, ...]] = {"digits": (20,), "arrays": (40,)}


def _untrained(experiment: str, training: TrainingConfig, images: str = "") -> StudyRun:
    """A learning rate of 0: the initial weights with the batch statistics of the data."""
    return StudyRun(experiment=experiment, teacher="untrained", training=training, data_digest=images)


def small_study(*, cifar10: Path | None = None, work: Path | None = None) -> Study:
    """All runs, seed after seed, so that a study that was stopped has all comparisons at fewer seeds."""
    part = None if cifar10 is None or work is None else cifar_part(cifar10, work)
    digits = (digits_runs, fixmatch_digits_runs, gentle_runs)
    runs = [run for seed in SEEDS for part_of_seed in digits for run in part_of_seed(seed)]
    runs += [run for seed in SEEDS for run in grid_runs(seed)]
    if part is not None:
        runs += [run for seed in SEEDS for run in cifar_runs(*part, seed)]
    return Study(name="small", runs=runs)


def cifar_part(file: Path, work: Path) -> tuple[Path, str]:
    """The first 4,000 training and 2,000 test images of an npz file as one of its own, and a digest of them."""
    train, test = (open_source("arrays", str(file), split, image_size=32) for split in ("train", "test"))
    if train.labels is None or test.labels is None or len(train) < CIFAR_TRAIN or len(test) < CIFAR_TEST:
        raise UsageError(
            f"--cifar10 needs {CIFAR_TRAIN} training and {CIFAR_TEST} test images with labels, got {len(train)} and "
            f"{len(test)}: write CIFAR-10 as x_train, y_train, x_test, y_test into one npz file"
        )
    parts = {"train": (train, CIFAR_TRAIN), "test": (test, CIFAR_TEST)}
    arrays = {f"x_{name}": s.images[:n].permute(0, 2, 3, 1).numpy() for name, (s, n) in parts.items()}  # type: ignore[union-attr]
    arrays |= {f"y_{name}": s.labels[:n] for name, (s, n) in parts.items() if s.labels is not None}
    digest = hashlib.sha256(b"".join(arrays[name].tobytes() for name in sorted(arrays))).hexdigest()[:8]
    path = work / f"cifar10-{digest}.npz"
    if not path.is_file():
        with replacing(path) as partial, partial.open("wb") as out:
            np.savez(out, **arrays)  # type: ignore[arg-type]  # the stub types any keyword as bool
    return path, digest
