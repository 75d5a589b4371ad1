"""Accuracy of several models on a corruption benchmark, and what is drawn from it."""

import io
import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sts_core.errors import ConfigError, StateError
from sts_eval.corruptions.benchmark import ALEXNET_ERRORS, ALL_CORRUPTIONS, MAIN_CORRUPTIONS, SEVERITIES
from sts_eval.corruptions.differences import compare_corruptions, paired_bootstrap
from sts_eval.corruptions.evaluation import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    CorruptionConfig,
    cells_of,
    corruption_robustness,
    evaluate_cell,
    merge_cells,
)
from sts_eval.corruptions.folders import digest_of
from sts_eval.corruptions.results import CorruptionResult
from sts_eval.errors import DataError

NUM_IMAGES, NUM_CLASSES = 10, 4


class CountingCell:
    """Images whose red channel holds the label; the first `severity` of them are corrupted to another label."""

    def __init__(self, corruption: str, severity: int, reads: dict[tuple[str, int, int], int]) -> None:
        self.corruption, self.severity, self.reads = corruption, severity, reads
        self.digest = digest_of([str(i) for i in range(NUM_IMAGES)], [i % NUM_CLASSES for i in range(NUM_IMAGES)])

    def __len__(self) -> int:
        return NUM_IMAGES

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        key = (self.corruption, self.severity, index)
        self.reads[key] = self.reads.get(key, 0) + 1
        label = index % NUM_CLASSES
        shown = (label + 1) % NUM_CLASSES if index < self.severity else label
        return np.full((8, 8, 3), [shown * 60, self.severity, 0], dtype=np.uint8), label


class CountingSource:
    num_classes = NUM_CLASSES
    severities = SEVERITIES

    def __init__(self, corruptions: tuple[str, ...] = ALL_CORRUPTIONS) -> None:
        self.corruptions = corruptions
        self.reads: dict[tuple[str, int, int], int] = {}

    def cell(self, corruption: str, severity: int) -> CountingCell:
        return CountingCell(corruption, severity, self.reads)

    def describe(self) -> dict[str, Any]:
        return {"source": "test"}


class RedClassifier(nn.Module):
    """Reads the label back from the red channel, `offset` classes off."""

    def __init__(self, offset: int = 0) -> None:
        super().__init__()
        self.offset = offset
        self.scale = nn.Parameter(torch.ones(()))
        self.norm = nn.BatchNorm2d(3)

    def forward(self, images: Tensor) -> Tensor:
        self.norm(images)  # in training mode this would change its statistics
        red = images[:, 0].mean((1, 2)) * IMAGENET_STD[0] + IMAGENET_MEAN[0]
        label = (red * 255 / 60).round().long() + self.offset
        return self.scale * torch.nn.functional.one_hot(label % NUM_CLASSES, NUM_CLASSES)


def test_every_cell_has_the_accuracy_of_a_plain_loop() -> None:
    results = corruption_robustness({"right": RedClassifier()}, CountingSource(), CorruptionConfig(batch_size=3))
    for (_, severity), accuracy in results["right"].accuracies.items():
        assert accuracy == pytest.approx(100 * (NUM_IMAGES - severity) / NUM_IMAGES)
    assert len(results["right"].accuracies) == 19 * 5


def test_each_image_is_read_once_for_all_models() -> None:
    source = CountingSource(("fog", "snow"))
    models = {"a": RedClassifier(), "b": RedClassifier(1), "c": RedClassifier(2)}
    results = corruption_robustness(models, source, CorruptionConfig(batch_size=4))
    assert set(source.reads.values()) == {1}
    assert len(source.reads) == 2 * 5 * NUM_IMAGES
    for name, model in models.items():
        alone = corruption_robustness({name: model}, CountingSource(("fog", "snow")))
        assert alone[name].accuracies == results[name].accuracies


def test_models_keep_their_mode_and_their_batch_statistics() -> None:
    model = RedClassifier().train()
    corruption_robustness({"m": model}, CountingSource(("fog",)))
    assert model.training
    assert model.norm.training
    assert model.norm.num_batches_tracked == 0
    evaluate_cell({"m": model}, CountingSource(), "fog", 1)  # a cell alone, as a remote worker evaluates it
    assert model.norm.training
    assert model.norm.num_batches_tracked == 0


def test_cells_evaluated_apart_and_in_any_order_merge_to_the_same_result() -> None:
    source, models = CountingSource(("fog", "spatter", "snow")), {"m": RedClassifier()}
    together = corruption_robustness(models, source)["m"]
    pieces = [pickle.loads(pickle.dumps(evaluate_cell(models, source, *cell))) for cell in cells_of(source)]  # noqa: S301
    merged = merge_cells(reversed(pieces))["m"]
    assert merged == together
    assert list(merged.accuracies) == list(together.accuracies)
    assert merged.corruptions == ("snow", "fog", "spatter")


def test_loader_processes_change_nothing_and_an_error_in_one_stays_one_sentence() -> None:
    source, models = CountingSource(("fog",)), {"m": RedClassifier()}
    alone = evaluate_cell(models, source, "fog", 2, CorruptionConfig(batch_size=3))
    workers = evaluate_cell(models, source, "fog", 2, CorruptionConfig(batch_size=3, num_workers=1))
    assert np.array_equal(alone.outcomes["m"], workers.outcomes["m"])
    with pytest.raises(DataError) as caught:
        evaluate_cell(models, BrokenSource(("fog",)), "fog", 2, CorruptionConfig(num_workers=1))
    assert str(caught.value) == "every image must be readable, x is not: copy it again"


class BrokenCell(CountingCell):
    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        raise DataError("every image must be readable, x is not: copy it again")


class BrokenSource(CountingSource):
    def cell(self, corruption: str, severity: int) -> CountingCell:
        return BrokenCell(corruption, severity, {})


def test_a_missing_severity_a_repeated_cell_and_other_images_do_not_merge() -> None:
    source, models = CountingSource(("fog", "snow")), {"m": RedClassifier()}
    pieces = [evaluate_cell(models, source, *cell) for cell in cells_of(source)]
    with pytest.raises(DataError, match="fog lacks 5: evaluate it"):
        merge_cells(pieces[:4] + pieces[5:])
    with pytest.raises(DataError, match="each cell must be evaluated once, got 11 of 10"):
        merge_cells([*pieces, pieces[0]])
    other = type(pieces[0])(**(pieces[0].__dict__ | {"images": "other"}))
    with pytest.raises(DataError, match="must hold the same images and models"):
        merge_cells([other, *pieces[1:]])
    with pytest.raises(DataError, match="got none"):
        merge_cells([])


def test_a_backbone_without_classifier_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"one score per class, \[N, 4\] here, net gave \(10, 192\)"):
        evaluate_cell({"net": nn.Flatten()}, CountingSource(), "fog", 1)
    with pytest.raises(ConfigError, match="at least one model"):
        corruption_robustness({}, CountingSource())


def result(accuracies: Mapping[str, float], name: str = "m", num_classes: int = 1000) -> CorruptionResult:
    """A result whose accuracy at severity s is the given mean plus (3 - s)."""
    cells = {(corruption, s): value + 3 - s for corruption, value in accuracies.items() for s in SEVERITIES}
    return CorruptionResult(
        model=name, accuracies=cells, num_images=NUM_IMAGES, num_classes=num_classes, images="d", source={}
    )


def test_the_papers_metric_is_the_mean_of_75_cells_and_leaves_the_extra_ones_out() -> None:
    accuracies = {name: float(i) for i, name in enumerate(MAIN_CORRUPTIONS)} | {"spatter": 90.0}
    ours = result(accuracies)
    assert ours.is_complete
    assert ours.mean_accuracy == pytest.approx(np.mean(range(15)))
    assert ours.severity_curve == pytest.approx({s: 7.0 + 3 - s for s in SEVERITIES})
    assert ours.extra_accuracies == {"spatter": 90.0}
    assert ours.group_accuracies == pytest.approx({"noise": 1.0, "blur": 4.5, "weather": 8.5, "digital": 12.5})


def test_the_mce_of_alexnet_is_100_and_of_a_perfect_model_0() -> None:
    assert result({n: 100 * (1 - e) for n, e in ALEXNET_ERRORS.items()}).mean_corruption_error == pytest.approx(100)
    assert result(dict.fromkeys(MAIN_CORRUPTIONS, 100.0)).mean_corruption_error == pytest.approx(0)


@pytest.mark.parametrize(
    ("corruption", "accuracy", "published"),
    [
        ("gaussian_noise", 27.42, 81.88),
        ("shot_noise", 27.89, 80.62),
        ("impulse_noise", 23.05, 83.41),
        ("defocus_blur", 41.17, 71.75),
        ("glass_blur", 24.38, 91.53),
        ("motion_blur", 39.77, 76.64),
        ("zoom_blur", 38.05, 77.60),
        ("snow", 33.44, 76.79),
        ("frost", 39.06, 73.72),
        ("fog", 44.14, 68.18),
        ("brightness", 67.66, 57.29),
        ("contrast", 38.12, 72.52),
        ("elastic_transform", 44.06, 86.58),
        ("pixelate", 45.70, 75.64),
        ("jpeg_compression", 54.45, 75.10),
    ],
)
def test_alexnets_errors_give_published_corruption_errors(corruption: str, accuracy: float, published: float) -> None:
    """Accuracy and CE of a ResNet-50, printed side by side in bethgelab/game-of-noise, Results/clean_results.txt."""
    assert (100 - accuracy) / ALEXNET_ERRORS[corruption] == pytest.approx(published, abs=0.02)


def test_the_mce_exists_only_for_all_of_imagenet_c() -> None:
    full = dict.fromkeys(MAIN_CORRUPTIONS, 50.0)
    assert result(full).mean_corruption_error is not None
    assert result(full, num_classes=10).mean_corruption_error is None
    assert result(full).num_main_cells == 75
    del full["fog"]
    assert result(full).mean_corruption_error is None
    assert not result(full).is_complete


def test_a_result_survives_json_and_its_outcomes_survive_the_file(tmp_path: Path) -> None:
    ours = corruption_robustness({"m": RedClassifier()}, CountingSource(("fog", "spatter")))["m"]
    entry = json.loads(json.dumps(ours.results_entry(network="teacher")))
    assert entry["evaluation"] == "imagenet-c"
    assert entry["value"] == pytest.approx(70.0)  # fog alone: 90, 80, ... 50
    back = CorruptionResult.from_json(entry)
    assert back == ours
    path = ours.save_outcomes(tmp_path / "run" / "imagenet-c.npz")
    restored = back.with_outcomes(path)
    assert restored.outcomes is not None
    assert ours.outcomes is not None
    assert set(restored.outcomes) == set(ours.outcomes)
    assert all(np.array_equal(restored.outcomes[cell], bits) for cell, bits in ours.outcomes.items())
    assert [file.name for file in path.parent.iterdir()] == ["imagenet-c.npz"]
    with pytest.raises(DataError, match="must belong to the same images"):
        result({"fog": 50.0}).with_outcomes(path)
    with pytest.raises(ConfigError, match="this one has none"):
        back.save_outcomes(tmp_path / "none.npz")


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "array", "foreign", "changed"])
def test_damaged_outcomes_are_one_sentence(tmp_path: Path, damage: str) -> None:
    ours = corruption_robustness({"m": RedClassifier()}, CountingSource(("fog",)))["m"]
    path = ours.save_outcomes(tmp_path / "outcomes.npz")
    whole = path.read_bytes()
    at = whole.index(b"fog/3.npy") + 140  # behind the header of that array
    contents = {"cut": whole[: len(whole) // 2], "empty": b"", "text": b"none"}
    contents["changed"] = whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :]
    for kind, save in (("array", np.save), ("foreign", np.savez)):
        save(other := io.BytesIO(), np.zeros(3))
        contents[kind] = other.getvalue()
    path.write_bytes(contents[damage])
    with pytest.raises(StateError, match=r"outcomes.npz is damaged \(.*\): evaluate the run again"):
        ours.with_outcomes(path)


def test_outcomes_of_other_cells_are_refused(tmp_path: Path) -> None:
    fog, snow = (corruption_robustness({"m": RedClassifier()}, CountingSource((n,)))["m"] for n in ("fog", "snow"))
    path = fog.save_outcomes(tmp_path / "outcomes.npz")
    with pytest.raises(DataError, match="must belong to the same cells"):
        snow.with_outcomes(path)


def test_the_bootstrap_equals_one_that_resamples_images_one_by_one() -> None:
    generator = np.random.default_rng(0)
    differences = (generator.integers(-5, 6, 200) * 20).astype(np.float64)
    low, high = paired_bootstrap(differences, confidence=0.9, num_resamples=20_000, seed=1)
    means = generator.choice(differences, (20_000, 200)).mean(1)
    assert [low, high] == pytest.approx(np.percentile(means, [5, 95]), abs=0.2)
    assert (low, high) == paired_bootstrap(differences, confidence=0.9, num_resamples=20_000, seed=1)


def test_a_comparison_pairs_images_and_its_interval_holds_the_difference() -> None:
    models = {"sts": RedClassifier(), "tma": RedClassifier(1)}
    results = corruption_robustness(models, CountingSource(("fog", "snow", "spatter")))
    sts, tma = results["sts"], results["tma"]
    compared = compare_corruptions(sts, tma)
    assert compared.mean.value == pytest.approx(sts.mean_accuracy - tma.mean_accuracy)
    fog = compared.corruptions["fog"]
    assert fog.value == pytest.approx(sts.corruption_accuracy("fog") - tma.corruption_accuracy("fog"))
    assert fog.low is not None
    assert fog.high is not None
    assert fog.low <= fog.value <= fog.high
    assert set(compared.severities) == set(SEVERITIES)
    assert compared.corruptions["spatter"].value is not None
    itself = compare_corruptions(sts, sts)
    assert (itself.mean.value, itself.mean.low, itself.mean.high) == (0, 0, 0)


def test_without_outcomes_there_is_a_difference_and_no_interval() -> None:
    compared = compare_corruptions(result({"fog": 60.0}, "a"), result({"fog": 55.0}, "b"))
    assert compared.corruptions["fog"].value == pytest.approx(5.0)
    assert compared.corruptions["fog"].low is None


def test_results_on_other_images_or_cells_are_not_compared() -> None:
    first = result({"fog": 60.0}, "a")
    for change in ({"images": "e"}, {"source": {"source": "generated"}}, {"source": {"pixels": "f", "root": "/a"}}):
        other = CorruptionResult(**(first.__dict__ | {"model": "b"} | change))
        with pytest.raises(DataError, match="on the same images only, a and b saw others"):
            compare_corruptions(first, other)
    moved = CorruptionResult(**(first.__dict__ | {"source": {**first.source, "root": "/elsewhere"}}))
    assert compare_corruptions(first, moved).mean.value == 0
    with pytest.raises(DataError, match="differ in snow at severity 1"):
        compare_corruptions(first, result({"fog": 60.0, "snow": 1.0}, "b"))
    with pytest.raises(ConfigError, match="between 0 and 1, got 95"):
        compare_corruptions(first, first, confidence=95)
