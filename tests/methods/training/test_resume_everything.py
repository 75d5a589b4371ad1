"""What a checkpoint must not forget: each method's own state, the scaler's, and where the loader was."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from sts_core import spatial_temporal_smoothing
from sts_methods import (
    ByolConfig,
    DataConfig,
    DinoConfig,
    FixMatchConfig,
    MeanTeacherConfig,
    MethodConfig,
    MoCoConfig,
    MoCoV3Config,
    TrainingConfig,
    fit,
    label_split,
    method_record,
)
from sts_methods.data.batches import evaluation_data
from sts_methods.runs.checkpoint import read_manifest
from tests.methods.training import tiny_training as tiny

SMALL: dict[str, Any] = {"backbone": "wrn_10_1", "stem": "cifar"}
METHODS: dict[str, MethodConfig] = {
    "byol": ByolConfig(**SMALL, hidden_dim=16, projection_dim=8),
    "moco": MoCoConfig(**SMALL, dim=8, queue_size=40, bn_groups=2),  # the queue wraps in the second step
    "moco_v3": MoCoV3Config(**SMALL, hidden_dim=16, dim=8),
    "dino": DinoConfig(**SMALL, hidden_dim=16, head_batch_norm=True, bottleneck_dim=8, num_prototypes=12),
    "fixmatch": FixMatchConfig(**SMALL, num_classes=10, threshold=0.1, pseudo_labels="teacher"),
    "mean_teacher": MeanTeacherConfig(**SMALL, num_classes=10, ramp_up_steps=4),
}


def config_of(name: str) -> TrainingConfig:
    labels = 20 if name in ("fixmatch", "mean_teacher") else None
    record = method_record(METHODS[name])
    assert record is not None
    return TrainingConfig(
        method=METHODS[name],
        smoothing=spatial_temporal_smoothing(0.9, 0.5, buffers="copy" if name == "fixmatch" else "keep"),
        momentum_schedule="cosine",
        data=DataConfig(image_size=8, views=record.views, num_labels=labels, unlabelled_ratio=2, num_local_crops=2),
        global_batch_size=32,
        accumulation=2,
        steps=5,
        checkpoint_every_steps=2,
        log_every_steps=1,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_method_resumes_to_the_same_bits(tmp_path: Path, name: str) -> None:
    config = config_of(name)
    straight = fit(config, tiny.runtime(tmp_path / "straight"))
    with pytest.raises(tiny.CrashError):
        fit(config, tiny.CrashingRuntime(tmp_path / "crashed", 3))
    resumed = fit(config, tiny.runtime(tmp_path / "crashed"))
    tiny.assert_same_bits(tiny.weights(straight), tiny.weights(resumed))
    assert tiny.logged(tmp_path / "straight") == tiny.logged(tmp_path / "crashed")


def test_the_labels_of_a_run_are_stored_beside_it_and_hashed_in_its_checkpoints(tmp_path: Path) -> None:
    config = config_of("fixmatch")
    fit(config, tiny.runtime(tmp_path))
    stored = json.loads((tmp_path / "labels.json").read_text())
    split = label_split(evaluation_data(config.data)[0].targets, num_labels=20, seed=config.seed)
    assert stored == {"sha256": split.sha256, "num_labels": 20, "indices": split.indices.tolist()}
    assert read_manifest(tmp_path / "checkpoints" / "step-00000005")["meta"]["label_split"] == split.sha256


@pytest.mark.slow
def test_a_run_that_reads_files_in_processes_resumes_in_mid_epoch_with_any_number_of_them(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for number in range(14):
        pixels = np.random.default_rng(number).integers(0, 256, (20, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{number}.jpg")
    data = DataConfig(dataset="images", root=str(tmp_path / "photos"), image_size=8, num_workers=2)
    config = tiny.tiny_config(data=data, global_batch_size=4, accumulation=2, steps=8)  # three steps to the epoch
    straight = tiny.tiny_fit(config, tiny.runtime(tmp_path / "straight"))
    with pytest.raises(tiny.CrashError):
        tiny.tiny_fit(config, tiny.CrashingRuntime(tmp_path / "crashed", 5))
    one_process = replace(config, data=replace(data, num_workers=1))
    resumed = tiny.tiny_fit(one_process, tiny.runtime(tmp_path / "crashed"))
    tiny.assert_same_bits(tiny.weights(straight), tiny.weights(resumed))


def test_the_scaler_of_float16_resumes_with_the_scale_it_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first scale overflows, and so does a later step: two steps move neither student nor teacher."""
    monkeypatch.setattr("sts_methods.training.learner.autocast_dtype", lambda precision, device: torch.float16)
    config = tiny.tiny_config(method=tiny.TinyConfig(nan_gradient_at_step=1), steps=6)
    straight = tiny.tiny_fit(config, tiny.runtime(tmp_path / "straight"))
    with pytest.raises(tiny.CrashError):
        tiny.tiny_fit(config, tiny.CrashingRuntime(tmp_path / "crashed", 4))
    resumed = tiny.tiny_fit(config, tiny.runtime(tmp_path / "crashed"))
    tiny.assert_same_bits(tiny.weights(straight), tiny.weights(resumed))
    states = [tiny.runtime(tmp_path / name).restore() for name in ("straight", "crashed")]
    assert states[0]["scaler"] == states[1]["scaler"]
    assert states[0]["scaler"]["scale"] == 2.0**14
    assert states[0]["smoother"]["step"] == 4


def test_a_run_that_began_without_float16_resumes_with_a_new_scaler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a run moves from a CPU, which trained it in float32, to a GPU."""
    with pytest.raises(tiny.CrashError):
        tiny.tiny_fit(tiny.tiny_config(steps=4), tiny.CrashingRuntime(tmp_path, 2))
    monkeypatch.setattr("sts_methods.training.learner.autocast_dtype", lambda precision, device: torch.float16)
    assert tiny.tiny_fit(tiny.tiny_config(steps=4), tiny.runtime(tmp_path)).step == 4
    assert tiny.runtime(tmp_path).restore()["scaler"]["scale"] > 0.0
