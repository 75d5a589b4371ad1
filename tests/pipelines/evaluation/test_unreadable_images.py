"""Images that nobody can read: `on_error skip` leaves them out, counted and told, from training to every evaluation."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sts_eval import DataError, LinearProbeConfig, read_results
from sts_methods.data.config import DataConfig
from sts_pipelines.config.evaluation import EvaluationConfig
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.evaluation import corruptions
from sts_pipelines.launch.driver import launch
from sts_pipelines.launch.job import jobs_of

Tiny = Callable[..., PipelineConfig]
AUGMENTED = LinearProbeConfig(
    solver="sgd", learning_rates=(0.1,), epochs=1, batch_size=8, augment=True, held_out_fraction=0.0, milestones=()
)


@pytest.fixture
def damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twelve training and twelve test images at ~/photos, of each a truncated and an empty one."""
    noise = np.random.default_rng(0).integers(0, 256, (2, 40, 40, 3), dtype=np.uint8)
    for split in ("train", "val"):
        for label, pixels in enumerate(noise):
            folder = tmp_path / "photos" / split / f"class{label}"
            folder.mkdir(parents=True)
            for number in range(6):
                Image.fromarray(np.roll(pixels, number)).save(folder / f"{number}.jpg")
        torn = tmp_path / "photos" / split / "class0" / "1.jpg"
        torn.write_bytes(torn.read_bytes()[:300])
        (tmp_path / "photos" / split / "class1" / "5.jpg").write_bytes(b"")
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / "photos"


def photos(pipeline: PipelineConfig, *asked: str, on_error: str) -> PipelineConfig:
    data = DataConfig(dataset="imagefolder", root="~/photos", image_size=16, views="byol", on_error=on_error)  # type: ignore[arg-type]
    evaluation = replace(
        pipeline.evaluation, after_training=asked, networks=("teacher",), linear=AUGMENTED, severities=(1,),
        knn=replace(pipeline.evaluation.knn, ks=(1,)),
    )  # fmt: skip
    training = replace(pipeline.training, data=data, global_batch_size=4)
    return replace(pipeline, training=training, evaluation=evaluation)


def test_a_run_that_skips_is_trained_and_evaluated_to_its_end_and_says_what_it_skipped(
    tiny: Tiny, damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corruptions, "cells_of", lambda source: [("contrast", 1)])
    pipeline = photos(tiny("byol-digits-tma", steps=4), "linear", "knn", "imagenet-c", on_error="skip")
    with pytest.warns(UserWarning, match="an image: every image must be readable"):
        launch(jobs_of(pipeline), name="x", folder=pipeline.folder)
    entries = {entry["evaluation"]: entry for entry in read_results(pipeline.folder).entries}
    assert entries.keys() == {"linear", "knn", "imagenet-c"}
    assert entries["imagenet-c"]["num_images"] == 10
    assert entries["imagenet-c"]["source"]["skipped"] == 2
    told = [json.loads(line)["warning"] for line in (pipeline.folder / "warnings.jsonl").read_text().splitlines()]
    assert len(set(told)) == len(told)
    assert not any(" at 0x" in one for one in told), "an address makes the same words new in every process"
    for split, begins in (("train", "skipped image "), ("val", "skipped image "), ("val", "left out an image")):
        for name in ("class0/1.jpg", "class1/5.jpg"):
            assert any(one.startswith(begins) and f"{split}/{name}" in one for one in told), "\n".join(
                [split, name, *told]
            )


def test_corruptions_of_a_folder_name_an_unreadable_image_unless_it_is_to_be_skipped(damaged: Path) -> None:
    data = DataConfig(dataset="imagefolder", root="~/photos", image_size=32)
    config = EvaluationConfig(severities=(1,))
    source = corruptions.corruption_source(data, config, ("class0", "class1"))
    with pytest.raises(DataError, match=r"class0/1.jpg is not \(OSError\): repair it"):
        [source.cell("contrast", 1)[index] for index in range(12)]
    with pytest.warns(UserWarning, match="left out an image") as told:
        source = corruptions.corruption_source(replace(data, on_error="skip"), config, ("class0", "class1"))
    assert len(told) == 2
    cell = source.cell("contrast", 1)
    assert [cell[index][1] for index in range(len(cell))] == [0] * 5 + [1] * 5
    assert "class0/1" not in source.clean.names
