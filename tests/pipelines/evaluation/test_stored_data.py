"""A pipeline trains and is evaluated on stored images as on files: with random crops of whole images, too."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sts_eval import LinearProbeConfig, read_results
from sts_methods import DataConfig
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.evaluation.records import linear
from sts_pipelines.launch.driver import launch
from sts_pipelines.launch.job import jobs_of
from tests.methods.data.stored_images import write_tables

AUGMENTED = LinearProbeConfig(
    solver="sgd", learning_rates=(0.1,), epochs=1, batch_size=8, augment=True, held_out_fraction=0.0, milestones=()
)


@pytest.mark.slow
def test_a_run_on_tables_is_trained_and_evaluated_to_its_end(
    tiny: Callable[..., PipelineConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_tables(tmp_path / "data", "parquet")
    data = DataConfig(
        dataset="huggingface", root=str(root), image_size=16, views="byol", cache_folder=str(tmp_path / "cache")
    )
    pipeline = tiny("byol-digits-tma", steps=4)
    evaluation = replace(
        pipeline.evaluation, after_training=("linear", "knn"), networks=("teacher",), linear=AUGMENTED,
        knn=replace(pipeline.evaluation.knn, ks=(1,)),
    )  # fmt: skip
    training = replace(pipeline.training, data=data, global_batch_size=4)
    pipeline = replace(pipeline, training=training, evaluation=evaluation)
    shown: list[Any] = []
    images = linear._images
    monkeypatch.setattr(linear, "_images", lambda run: shown.append(images(run)) or shown[-1])
    launch(jobs_of(pipeline), name="x", folder=pipeline.folder)
    entries = {entry["evaluation"]: entry for entry in read_results(pipeline.folder).entries}
    assert entries.keys() == {"linear", "knn"}
    assert shown[0][0][5][0].size == (80 - 5, 40 + 5), "the probe crops whole images"
