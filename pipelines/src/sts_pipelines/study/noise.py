"""The study `noise`: how far STS teachers are from TMA(m_eff) in real training, beside what theory predicts.

One student, and a bank of teachers that never influence it: STS and SE at every granularity and the moving average that
each one is in expectation. `sts_core.next_noise_variance` predicts the distance from the student's path alone.
"""

import json
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from sts_core import (
    Granularity,
    Smoother,
    SmoothingConfig,
    TeacherBank,
    next_noise_variance,
    noise_std,
    parameter_drift,
)
from sts_core.files import write_atomically
from sts_methods import (
    DataConfig,
    TrainingConfig,
    build_method,
    build_optimizer,
    build_training_data,
    learning_rate,
    set_learning_rate_,
)
from sts_pipelines.study.records import git_revision
from sts_pipelines.study.small import byol, fixmatch

POINTS = 60
"""How often along a training the distances are noted."""


@dataclass(frozen=True)
class Setting:
    """A student and the two kinds of teachers that follow it."""

    title: str
    training: TrainingConfig
    teachers: Mapping[str, SmoothingConfig]
    """By name, at layer granularity; the others are derived."""


def settings() -> dict[str, Setting]:
    """The paper's m and p for BYOL and FixMatch, trained for several times 1/(1 - m_eff) steps."""
    digits = DataConfig(dataset="digits", image_size=12, views="byol")
    paper_byol = SmoothingConfig(momentum=0.99, preserve_probability=0.7)
    paper_fixmatch = SmoothingConfig(momentum=0.999, preserve_probability=0.5)
    ensemble = SmoothingConfig(momentum=0.0, preserve_probability=0.99)
    labelled = replace(digits, views="fixmatch", num_labels=40)
    return {
        "byol": Setting(
            "BYOL",
            byol(digits, replace(paper_byol, buffers="keep"), seed=0, steps=1500, lr=0.4),
            {"sts": paper_byol, "se": ensemble},
        ),
        "fixmatch": Setting(
            "FixMatch", fixmatch(labelled, paper_fixmatch, seed=0, steps=4000), {"sts": paper_fixmatch, "se": ensemble}
        ),
    }


def bank_of(teachers: Mapping[str, SmoothingConfig]) -> dict[str, SmoothingConfig]:
    """Every teacher at every granularity, its control TMA(m_eff), and TMA(m)."""
    configs: dict[str, SmoothingConfig] = {}
    for name, config in teachers.items():
        for granularity in get_args(Granularity):
            configs[f"{name}-{granularity}"] = replace(config, granularity=granularity)
        configs[f"{name}-control"] = config.matched_moving_average()
        configs[f"{name}-tma"] = replace(config, preserve_probability=0.0)
    return configs


def follow(setting: Setting) -> Iterator[dict[str, Any]]:
    """Train the student, and give the distances of all teachers from their controls at `POINTS` steps."""
    training = setting.training
    method = build_method(training.method, seed=training.seed)
    data = build_training_data(training.data, seed=training.seed, global_batch_size=training.global_batch_size)
    optimizer = build_optimizer(method, training.optimizer)
    smoother = Smoother(student=method.student, teacher=method.teacher, config=training.smoothing, seed=training.seed)
    bank = TeacherBank(student=method.student, configs=bank_of(setting.teachers), seed=training.seed)
    variance = dict.fromkeys(setting.teachers, 0.0)
    total = training.total_steps(data.steps_per_epoch)
    rate = partial(
        learning_rate,
        training.optimizer,
        total_steps=total,
        steps_per_epoch=data.steps_per_epoch,
        global_batch_size=training.global_batch_size,
    )
    for step, (batch,) in zip(range(1, total + 1), data.steps(), strict=False):
        set_learning_rate_(optimizer, rate(step - 1))
        optimizer.zero_grad()
        method(batch).loss.backward()
        optimizer.step()
        distance = {name: parameter_drift(method.student, bank.teachers[f"{name}-control"]) for name in variance}
        for name, config in setting.teachers.items():
            variance[name] = next_noise_variance(variance[name], distance[name], config)
        smoother.update()
        bank.update()
        if step % (total // POINTS) == 0:
            noted = {name: _noted(bank, name, distance[name], variance[name]) for name in variance}
            yield {"step": step, "teachers": noted}


def _noted(bank: TeacherBank, name: str, squared: float, variance: float) -> dict[str, float]:
    """Root mean squares over weights: the student's distance from the control, the noise predicted and measured."""
    control = bank.teachers[f"{name}-control"]
    others = {granularity: f"{name}-{granularity}" for granularity in (*get_args(Granularity), "tma")}
    measured = {key: math.sqrt(parameter_drift(bank.teachers[other], control)) for key, other in others.items()}
    return {"distance": math.sqrt(squared), "predicted": math.sqrt(variance), **measured}


def conduct_noise(output: Path) -> None:
    """Do what is missing, setting by setting, then draw the figures."""
    for key, setting in settings().items():
        path = output / f"{key}.json"
        if path.is_file():
            continue
        points = []
        for point in follow(setting):
            points.append(point)
            print(f"\r{setting.title}: step {point['step']}", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        teachers = {
            name: asdict(config) | {"noise_std": noise_std(config)} for name, config in setting.teachers.items()
        }
        found = {"title": setting.title, "revision": git_revision(), "teachers": teachers, "points": points}
        write_atomically(path, json.dumps(found) + "\n")
    from sts_pipelines.study.pages.noise_report import write_noise_report

    print(write_noise_report(output))
