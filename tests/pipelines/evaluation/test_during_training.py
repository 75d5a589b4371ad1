"""Curves: k-NN and linear evaluation while a pipeline trains."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sts_eval import read_results
from sts_methods import MetricsLog, read_checkpoint
from sts_pipelines.cli.main import main
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.evaluation.in_training import LabelledImages, balanced
from tests.pipelines.conftest import run

Tiny = Callable[..., PipelineConfig]
STEPS = 12  # digits have 22 batches of 64: with 256 an epoch is 5 steps


def watched(pipeline: PipelineConfig, **during: Any) -> PipelineConfig:
    section = replace(pipeline.evaluation.during_training, **({"every_epochs": 1} | during))
    return replace(pipeline, evaluation=replace(pipeline.evaluation, after_training=("knn",), during_training=section))


def curve(folder: Path, name: str) -> list[tuple[int, float]]:
    return [(line["step"], line[name]) for line in MetricsLog(folder / "metrics.jsonl").read() if name in line]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run that was watched on all images, and the same that was not."""
    from sts_pipelines.cli.resolve import resolve

    found = []
    for during in ("1", "null"):
        flags = [
            "--global-batch-size",
            "256",
            "--steps",
            str(STEPS),
            "--evaluation.during-training.every-epochs",
            during,
        ]
        flags += ["--cluster.storage-path", str(tmp_path_factory.mktemp("runs")), "--log-every-steps", "4"]
        pipeline = resolve("byol-digits-sts", [*flags, "--evaluation.after-training", "knn"])
        assert isinstance(pipeline, PipelineConfig)
        found.append(run(pipeline))
    assert found[0].name == found[1].name, "what is only watched is the same run"
    return found[0], found[1]


def test_the_weights_are_the_same_to_the_bit_with_and_without(folders: tuple[Path, Path]) -> None:
    one, other = (read_checkpoint(folder / "checkpoints" / f"step-{STEPS:08d}")["method"] for folder in folders)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_curve_has_a_point_for_each_epoch_network_and_evaluation(folders: tuple[Path, Path]) -> None:
    for evaluation in ("knn", "linear"):
        for network in ("teacher", "student"):
            points = curve(folders[0], f"{evaluation}/{network}/top1")
            assert [step for step, _ in points] == [5, 10]
            assert all(20 < value <= 100 for _, value in points), "digits are told apart by any features"
    assert not curve(folders[1], "knn/teacher/top1")


def test_on_all_images_the_last_point_is_what_evaluation_finds(tiny: Tiny) -> None:
    pipeline = watched(tiny("byol-digits-sts", steps=10, global_batch_size=256))
    folder = run(pipeline)
    for network in ("teacher", "student"):
        (found,) = {
            e["value"] for e in read_results(folder).entries if (e["network"], e["metric"]) == (network, "top1")
        }
        first, last = curve(folder, f"knn/{network}/top1")
        assert last == (10, found)
        assert first != (5, found)


def test_the_curve_is_in_tensorboard_and_in_the_report(folders: tuple[Path, Path]) -> None:
    folder = folders[0]
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    shown = [(event.step, event.value) for event in events.Scalars("knn/teacher/top1")]
    assert shown == [(step, pytest.approx(value)) for step, value in curve(folder, "knn/teacher/top1")]
    assert main(["report", str(folder)]) == 0
    text = (folder / "report" / "report.md").read_text()
    section = text.partition("## During training")[2].partition("\n## ")[0]
    last = curve(folder, "knn/teacher/top1")[-1][1]
    assert f"| Nearest neighbours, teacher, top-1 | 2 | {last:.2f} |" in section
    assert "knn/teacher" not in text.partition("## Training curves")[2]
    assert "Nearest neighbours, teacher, top-1" in (folder / "report" / "report.html").read_text()


def test_a_part_of_the_images_has_all_classes_alike_and_is_the_same_in_every_run(tiny: Tiny) -> None:
    labels = torch.tensor([0] * 50 + [1] * 30 + [2] * 3).repeat(2)
    chosen = balanced(labels, 30)
    assert chosen == sorted(set(chosen))
    assert torch.bincount(labels[chosen]).tolist() == [12, 12, 6]
    assert chosen == balanced(labels, 30)
    assert set(chosen) < set(balanced(labels, 40)), "a larger part holds the smaller one"
    pipeline = tiny("byol-digits-sts")
    images = LabelledImages(pipeline, num_train=100, num_test=50)
    assert (len(images.train), len(images.test)) == (100, 50)
    assert len(LabelledImages(pipeline, num_train=10**6).train) == len(LabelledImages(pipeline).train)


@pytest.mark.parametrize(
    ("name", "flags", "message"),
    [
        ("byol-photos", [], "knn, linear need labelled images, and dataset images has none"),
        ("byol-digits-sts", ["evaluations", "few-labels"], "out of evaluation.during-training.evaluations"),
        ("byol-digits-sts", ["evaluations", "voc"], "must hold some of linear, knn, few-labels, got 'voc'"),
        ("byol-digits-sts", ["num-train", "10"], "at most evaluation.during-training.num-train=10, got 20"),
        ("byol-digits-sts", ["num-test", "0"], "num_test must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_measured_is_told_before_the_run(
    name: str, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    during = "--evaluation.during-training"
    asked = [f"{during}.every-epochs", "1", *([f"{during}.{flags[0]}", flags[1]] if flags else [])]
    assert main(["check", name, "--no-placement", *asked]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert message in said
