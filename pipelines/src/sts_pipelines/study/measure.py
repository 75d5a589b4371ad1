"""One run of a study: train in this process, evaluate both networks, and give back the numbers alone."""

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sts_eval import (
    MAIN_CORRUPTIONS,
    CleanArrays,
    CorruptionConfig,
    Features,
    GeneratedCorruptions,
    NeighboursConfig,
    classification_accuracy,
    corruption_robustness,
    extract_features,
    fast_protocol,
    linear_probe,
    nearest_neighbours,
)
from sts_methods import (
    ImageArrays,
    LocalRuntime,
    NonFiniteLossError,
    TrainingResult,
    evaluation_data,
    fit,
    open_source,
)
from sts_pipelines.evaluation.corruptions import Resized
from sts_pipelines.study.plan import Record, StudyRun

NEIGHBOURS = NeighboursConfig(ks=(20,), temperatures=(0.07,))  # DINO's k and temperature
PROBE = fast_protocol(regularisations=(1e-3,))  # one, so that nothing is chosen on the test images
SEVERITIES = (1, 3, 5)
NETWORKS = ("teacher", "student")
TRAINING = ("loss", "effective_rank", "mask_ratio")
"""Metrics of the last steps of training that are kept: a collapsed student shows in its loss and its embeddings."""


def measure(run: StudyRun, *, work: Path, revision: str) -> Record:
    """Train and evaluate one run; its run folder is temporary, corrupted images are shared below `work`."""
    start = time.process_time()
    work.mkdir(parents=True, exist_ok=True)
    values: dict[str, float] = {}
    failed, drift = "", []
    with tempfile.TemporaryDirectory(prefix=f"{run.experiment}-", dir=work) as folder:
        try:
            result = fit(run.training, LocalRuntime(folder, device="cpu", progress=False))
        except NonFiniteLossError as error:  # a loss that is not finite is an outcome, not a mistake
            failed = str(error)
        else:
            semi_supervised = run.training.data.with_labels
            values = _classifiers(run, result) if semi_supervised else _features(run, result, work)
            values |= {name: result.metrics[name] for name in TRAINING if name in result.metrics}
            drift = _drift(Path(folder) / "metrics.jsonl")
    smoothing = run.training.smoothing
    return Record(
        key=run.key,
        experiment=run.experiment,
        teacher=run.teacher,
        seed=run.seed,
        smoothing={
            "momentum": smoothing.momentum,
            "preserve_probability": smoothing.preserve_probability,
            "granularity": smoothing.granularity,
        },
        values=values,
        drift=drift,
        cpu_seconds=time.process_time() - start,
        revision=revision,
        failed=failed,
    )


def _classifiers(run: StudyRun, result: TrainingResult) -> dict[str, float]:
    """Top-1 of student, teacher and every teacher of the bank."""
    _, test = evaluation_data(run.training.data)
    models = {"teacher": result.method.teacher, "student": result.method.student, **result.bank}
    return {f"top1/{name}": classification_accuracy(model, test)[1] for name, model in models.items()}


def _features(run: StudyRun, result: TrainingResult, work: Path) -> dict[str, float]:
    """Linear probe and k-NN of both networks, and the probe on corrupted images."""
    splits = evaluation_data(run.training.data)
    values: dict[str, float] = {}
    for network in NETWORKS:
        backbone = result.backbone("teacher" if network == "teacher" else "student")
        train, test = (extract_features(backbone, split) for split in splits)
        values[f"knn/{network}"] = nearest_neighbours(train, test, NEIGHBOURS).top1(20, 0.07)
        values[f"width/{network}"] = feature_width(train)
        if run.folds:
            values[f"linear/{network}"] = cross_validated(joined(train, test), run.folds)
            continue
        probe = linear_probe(train, test, PROBE)
        values[f"linear/{network}"] = probe.last[1]
        if run.corruptions and network == "teacher":
            values[f"corrupted/{network}"] = _corrupted(run, probe.with_backbone(backbone), work)
            values[f"excess/{network}"] = values[f"corrupted/{network}"] - values[f"linear/{network}"]
    return values


def joined(train: Features, test: Features) -> Features:
    """The features of both splits."""
    values, labels = torch.cat([train.values, test.values]), torch.cat([train.labels, test.labels])
    return Features(values, labels, train.classes)


def cross_validated(features: Features, folds: int) -> float:
    """Percent correct over all images, each judged by a probe that was trained on the other folds.

    With as few images as digits the noise of a test set is as large as that between seeds; this one is five times as
    large as the test split. The network has seen most images before, but no label.
    """
    fold = torch.arange(len(features)) % folds
    correct = 0.0
    for held_out in range(folds):
        train, test = (
            Features(features.values[kept], features.labels[kept], features.classes)
            for kept in (fold != held_out, fold == held_out)
        )
        correct += linear_probe(train, test, PROBE).last[1] * len(test)
    return correct / len(features)


def feature_width(features: Features) -> float:
    """exp(-Σ q log q), q the shares of the covariance's eigenvalues: 1 for features on a line, which have collapsed."""
    values = features.values.double()
    spectrum = torch.linalg.eigvalsh(torch.cov(values.T)).clamp_min(0)
    shares = spectrum / spectrum.sum().clamp_min(1e-300)
    return float(torch.special.entr(shares).sum().exp())


def _corrupted(run: StudyRun, model: nn.Module, work: Path) -> float:
    """Mean top-1 over the 15 corruptions of CIFAR-10-C at severities 1, 3 and 5."""
    data = run.training.data
    mean, std = data.statistics
    config = CorruptionConfig(mean=(mean[0], mean[1], mean[2]), std=(std[0], std[1], std[2]))
    shown = Resized(model, data.image_size)
    return corruption_robustness({"model": shown}, corruption_source(run, work), config)["model"].mean_accuracy


def corruption_source(run: StudyRun, work: Path) -> GeneratedCorruptions:
    """The first test images, corrupted at 32 pixels or more: corruptions are not defined below."""
    data, num_images = run.training.data, run.corruptions
    test = open_source(data.dataset, data.root, "test", image_size=max(data.image_size, 32))
    assert isinstance(test, ImageArrays), "studies use images in memory"
    assert test.labels is not None, "studies use labelled images"
    assert test.classes is not None, "labelled images have classes"
    images = test.images[:num_images].permute(0, 2, 3, 1).contiguous().numpy()
    clean = CleanArrays(images, test.labels[:num_images], num_classes=len(test.classes))
    cache = work / f"corrupted-{data.dataset}{run.data_digest}-{num_images}"
    return GeneratedCorruptions(clean, corruptions=MAIN_CORRUPTIONS, severities=SEVERITIES, cache=cache)


def _drift(metrics: Path) -> list[tuple[float, float, float]]:
    lines: list[dict[str, Any]] = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [
        (line["epoch"], line["parameter_drift"], line["output_drift"]) for line in lines if "parameter_drift" in line
    ]
