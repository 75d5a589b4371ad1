"""The study of CIFAR-10: its images, its arms and its claims belong together."""

from pathlib import Path

import numpy as np
import pytest

from sts_pipelines.cli.main import main
from sts_pipelines.study import medium
from sts_pipelines.study.planning import write_plan
from tests.pipelines.study.test_verdicts import invented, noise

IMAGES = medium.Images(path=Path("cifar10.npz"), digest="1")


def written(path: Path, count: int, *, compressed: bool = False) -> Path:
    images = np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(count) % 10
    save = np.savez_compressed if compressed else np.savez
    save(path, x_train=images, y_train=labels, x_test=images, y_test=labels)
    return path


def test_cifar_is_cut_to_a_part_whose_digest_depends_on_the_images_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(medium, "TRAIN", 6)
    monkeypatch.setattr(medium, "TEST", 4)
    part = medium.cifar_part(written(tmp_path / "a.npz", 10), tmp_path / "new")
    assert medium.cifar_part(written(tmp_path / "b.npz", 10, compressed=True), tmp_path / "new") == part
    with np.load(part.path) as found:
        lengths = {name: len(found[name]) for name in found.files}
    assert lengths == {"x_train": 6, "y_train": 6, "x_test": 4, "y_test": 4}
    monkeypatch.setattr(medium, "TRAIN", 11)
    with pytest.raises(ValueError, match="--cifar10 needs"):
        medium.cifar_part(tmp_path / "a.npz", tmp_path)


def test_every_comparison_has_arms_that_are_run_and_three_seeds_or_all() -> None:
    study = medium.medium_study(IMAGES)
    assert {study.num_seeds(comparison) for comparison in study.comparisons} == {3, len(medium.SEEDS)}


def test_the_pilot_is_enough_for_a_plan(tmp_path: Path) -> None:
    study, pilot = medium.medium_study(IMAGES), medium.pilot_study(IMAGES)
    records = invented(pilot, lambda run, name: 60.0 + noise(run, name))
    assert f"{len(study.comparisons)} comparisons" in write_plan(study, records, tmp_path)
    assert not set(study.seeds) & set(pilot.seeds)


def test_the_key_of_a_run_depends_on_the_images_and_not_on_their_path() -> None:
    first, moved, others = (
        medium.medium_study(images).runs[0].key
        for images in (IMAGES, medium.Images(path=Path("b.npz"), digest="1"), medium.Images(path=Path("b"), digest="2"))
    )
    assert first == moved != others


def test_doses_stand_beside_sts_of_the_same_expected_pull() -> None:
    arms = medium.teachers(0.7, doses=True)
    assert arms["sts-0.9"].effective_momentum == pytest.approx(arms["tma-0.97"].momentum)
    assert arms["sts"].effective_momentum == pytest.approx(arms["control"].momentum) == pytest.approx(0.997)


def test_the_study_of_cifar_asks_for_its_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "medium", "--output", str(tmp_path)]) == 2
    assert "needs --cifar10" in capsys.readouterr().err
