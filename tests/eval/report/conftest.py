"""Small run folders for the tests of reports: numbers are made up, files are of the real formats."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sts_eval.corruptions.benchmark import ALL_CORRUPTIONS, SEVERITIES
from sts_eval.corruptions.results import CorruptionResult
from sts_eval.report.blocks import Report, Table

NUM_IMAGES = 40
MakeRun = Callable[..., Path]

CONDITIONS = {
    "method": "byol",
    "backbone": "resnet50",
    "stem": "imagenet",
    "dataset": "imagenet",
    "image_size": 224,
    "augmentation": "byol",
    "optimizer": "sgd",
    "lr": 0.05,
    "lr_schedule": "cosine",
    "weight_decay": 1e-4,
    "sgd_momentum": 0.9,
    "warmup_epochs": 10.0,
    "global_batch_size": 256,
    "epochs": 200,
    "momentum_schedule": "cosine",
}


def training_of(*, m: float, p: float, granularity: str = "layer", seed: int = 0) -> dict[str, Any]:
    """A run's training.json."""
    smoothing = {"momentum": m, "preserve_probability": p, "granularity": granularity, "buffers": "keep"}
    return {
        "seed": seed,
        "recipe": "one",
        "length": "200 epochs",
        "smoothing": smoothing,
        "conditions": CONDITIONS,
        "data": {"dataset": "imagenet", "image_size": 224},
        "settings": {"seed": seed, "epochs": 200} | {f"smoothing.{name}": value for name, value in smoothing.items()},
    }


def changed(folder: Path, **changes: Any) -> Path:
    """`folder` with other values in its training.json; of sections only the named ones are replaced."""
    training = json.loads((folder / "training.json").read_text())
    for name, value in changes.items():
        training[name] = training[name] | value if isinstance(value, dict) else value
    (folder / "training.json").write_text(json.dumps(training))
    return folder


def metrics_of(*, speed: float, num_lines: int = 30, drift: bool = True) -> list[dict[str, Any]]:
    """Loss, speed and, at whole epochs, drift."""
    lines: list[dict[str, Any]] = []
    for step in range(1, num_lines + 1):
        line = {"step": step * 10, "epoch": step / 3, "loss": 1 + math.exp(-step / 9), "images_per_second": speed}
        if drift and step % 3 == 0:
            line |= {"parameter_drift": 1e-5 / step, "output_drift": 1e-2 / step}
        lines.append(line)
    return lines


def accuracy_entries(top1: float) -> list[dict[str, Any]]:
    """Linear evaluation of both networks, last and best."""
    return [
        {"evaluation": "linear", "network": network, "metric": metric, "value": top1 + add, "which": which}
        for network, lower in (("teacher", 0.0), ("student", -1.0))
        for which, higher in (("last", 0.0), ("best", 0.25))
        for metric, add in (("top1", lower + higher), ("top5", 18 + lower + higher))
    ]


def corruption_result(name: str, shift: float) -> CorruptionResult:
    """Outcomes of a model that gets better with `shift` and worse with the severity."""
    generator = np.random.default_rng(0)
    difficulty = generator.random((len(ALL_CORRUPTIONS), NUM_IMAGES))
    outcomes = {
        (corruption, severity): difficulty[row] > 0.1 * severity - shift
        for row, corruption in enumerate(ALL_CORRUPTIONS)
        for severity in SEVERITIES
    }
    return CorruptionResult(
        model=name,
        accuracies={cell: 100 * float(bits.mean()) for cell, bits in outcomes.items()},
        num_images=NUM_IMAGES,
        num_classes=1000,
        images="same",
        source={"source": "released folders"},
        outcomes=outcomes,
    )


def write_run(
    root: Path,
    name: str,
    *,
    m: float = 0.99,
    p: float = 0.0,
    granularity: str = "layer",
    seed: int = 0,
    top1: float | None = 70.0,
    speed: float = 100.0,
    shift: float | None = None,
    metrics: bool = True,
    drift: bool = True,
) -> Path:
    """One run folder; what is None or False is left out."""
    folder = root / name
    folder.mkdir(parents=True)
    training = training_of(m=m, p=p, granularity=granularity, seed=seed)
    (folder / "training.json").write_text(json.dumps(training))
    if metrics:
        lines = metrics_of(speed=speed, drift=drift)
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    entries = [] if top1 is None else accuracy_entries(top1)
    if shift is not None:
        result = corruption_result(name, shift)
        result.save_outcomes(folder / "imagenet-c.npz")
        entries.append(result.results_entry(network="teacher", outcomes="imagenet-c.npz"))
    if entries:
        content = {"format": "sts-results", "run": name, "seed": seed, "entries": entries}
        (folder / "results.json").write_text(json.dumps(content))
    return folder


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """make_run("name", m=..., p=...) writes a run folder below tmp_path/runs and returns it."""
    return lambda name, **settings: write_run(tmp_path / "runs", name, **settings)


@pytest.fixture
def family(make_run: Callable[..., Path], tmp_path: Path) -> Path:
    """A folder of six runs that has data for every section but the p x m plane."""
    make_run("none", m=0.0, top1=10.0)
    make_run("tma", m=0.99, top1=71.5, shift=0.0)
    make_run("tma-matched", m=0.997, top1=72.25)
    make_run("sts", m=0.99, p=0.7, top1=72.75, shift=0.05)
    make_run("sts-channel", m=0.99, p=0.7, granularity="channel", top1=72.5, speed=96.0)
    make_run("sts-neuron", m=0.99, p=0.7, granularity="neuron", top1=72.5, speed=50.0)
    return tmp_path / "runs"


@pytest.fixture
def sweep(make_run: Callable[..., Path], tmp_path: Path) -> Path:
    """A folder of eleven runs over p and m; one cell of the twelve is missing."""
    for m in (0.0, 0.9, 0.99):
        for p in (0.0, 0.5, 0.9, 0.99):
            if (m, p) != (0.99, 0.99):
                make_run(f"m{m}-p{p}", m=m, p=p, top1=60 + 10 * m + p, metrics=False)
    return tmp_path / "runs"


def anchors(report: Report) -> list[str]:
    return [section.anchor for section in report.sections]


def table_of(report: Report, anchor: str) -> Table:
    section = next(section for section in report.sections if section.anchor == anchor)
    return next(block for block in section.blocks if isinstance(block, Table))


def rows_of(table: Table) -> list[list[str]]:
    return [[str(value) for value in row] for row in table.rows]
