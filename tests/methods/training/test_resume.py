"""A run that was killed, at whatever moment, cannot be told from one that was not."""

import json
import os
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from sts_core import spatial_ensemble, temporal_moving_average
from sts_core.errors import StateError
from sts_methods.data.config import DataConfig
from sts_methods.runs.checkpoint import read_manifest
from sts_methods.runs.resume import check_resumable
from sts_methods.runs.runtime import LocalRuntime
from sts_methods.training.config import TrainingConfig
from sts_methods.training.optimizers import OptimizerConfig
from tests import processes
from tests.methods.training import tiny_training as tiny


def _everything() -> TrainingConfig:
    """Every part that has state: LARS momentum, micro-batches, a bank, drift, cosine momentum."""
    config: TrainingConfig = tiny.tiny_config(
        optimizer=OptimizerConfig(name="lars", lr=20.0, exclude_norm_and_bias=True, warmup_epochs=1),
        momentum_schedule="cosine",
        accumulation=2,
        track_drift=True,
        bank={"se": spatial_ensemble(0.7), "tma": temporal_moving_average(0.9)},
        log_every_steps=3,
    )
    return config


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_a_run_that_crashes_at_random_steps_ends_with_the_same_bits(tmp_path: Path, seed: int) -> None:
    config = _everything()
    straight = tiny.tiny_fit(config, tiny.runtime(tmp_path / "straight"))
    reported = sorted({entry["step"] for entry in tiny.logged(tmp_path / "straight")})
    # Step 9 is logged and not saved, so what was logged has to be taken back.
    for crash_at in sorted({9, *random.Random(seed).sample(reported, 2)}):
        with pytest.raises(tiny.CrashError):
            tiny.tiny_fit(config, tiny.CrashingRuntime(tmp_path / "crashed", crash_at))
    resumed = tiny.tiny_fit(config, tiny.runtime(tmp_path / "crashed"))
    tiny.assert_same_bits(tiny.weights(straight), tiny.weights(resumed))
    assert resumed.step == 12
    assert tiny.logged(tmp_path / "crashed") == tiny.logged(tmp_path / "straight")


def test_a_run_that_stops_early_is_the_first_part_of_the_long_one_even_if_it_crashed(tmp_path: Path) -> None:
    long = _everything()
    stopped = replace(long, stop_after_epochs=2)
    with pytest.raises(tiny.CrashError):  # what the long run had done when its eighth step was saved
        tiny.tiny_fit(long, tiny.CrashingRuntime(tmp_path / "long", 8))
    with pytest.raises(tiny.CrashError):
        tiny.tiny_fit(stopped, tiny.CrashingRuntime(tmp_path / "stopped", 6))
    ended = tiny.tiny_fit(stopped, tiny.runtime(tmp_path / "stopped"))
    assert ended.step == 8
    assert tiny.logged(tmp_path / "stopped") == tiny.logged(tmp_path / "long")
    first, second = (tiny.runtime(tmp_path / name).restore() for name in ("long", "stopped"))
    assert first is not None
    assert second is not None
    for part in ("method", "drift"):
        tiny.assert_same_bits(first[part], second[part])
    torch.testing.assert_close(first["optimizer"], second["optimizer"], rtol=0, atol=0)


@pytest.mark.slow
def test_a_run_killed_over_and_over_ends_with_the_same_bits(tmp_path: Path) -> None:
    config = tiny.script_config(120)
    straight = tiny.tiny_fit(config, tiny.runtime(tmp_path / "straight"))
    draws = random.Random(0)
    script = Path(__file__).with_name("tiny_training.py")
    folder = tmp_path / "killed"
    checkpoints = tiny.runtime(folder).checkpoints
    for target in sorted(draws.sample(range(5, 80), 3)):
        with processes.Process([sys.executable, script, folder, 120]) as process:
            processes.wait_until(
                lambda step=target: max(checkpoints.steps(), default=0) >= step, process, every_seconds=0.001
            )
            assert process.poll() is None, "the run ended before it could be killed"
            time.sleep(draws.random() * 0.01)
            os.kill(process.pid, signal.SIGKILL)
    resumed = tiny.tiny_fit(config, tiny.runtime(folder))
    tiny.assert_same_bits(tiny.weights(straight), tiny.weights(resumed))
    assert [entry["step"] for entry in tiny.logged(folder)] == list(range(1, 121))


@pytest.mark.slow
def test_a_corrupt_newest_checkpoint_costs_time_and_not_bits(tmp_path: Path) -> None:
    config = tiny.tiny_config()
    straight = tiny.tiny_fit(config, tiny.runtime(tmp_path / "straight"))
    with pytest.raises(tiny.CrashError):
        tiny.tiny_fit(config, tiny.CrashingRuntime(tmp_path / "torn", 6))
    newest = tmp_path / "torn" / "checkpoints" / "step-00000006" / "state.pt"
    newest.write_bytes(newest.read_bytes()[:500])
    with pytest.warns(UserWarning, match="step-00000006"):
        resumed = tiny.tiny_fit(config, tiny.runtime(tmp_path / "torn"))
    tiny.assert_same_bits(tiny.weights(straight), tiny.weights(resumed))


def test_a_finished_run_returns_its_result_again_without_training(tmp_path: Path) -> None:
    first = tiny.tiny_fit(tiny.tiny_config(), tiny.runtime(tmp_path))
    again = tiny.tiny_fit(tiny.tiny_config(), tiny.runtime(tmp_path))
    tiny.assert_same_bits(tiny.weights(first), tiny.weights(again))
    assert again.metrics == first.metrics
    assert again.step == 12


def test_a_changed_config_is_refused_by_name_and_operational_settings_are_not(tmp_path: Path) -> None:
    tiny.tiny_fit(tiny.tiny_config(), tiny.runtime(tmp_path))
    changed = tiny.tiny_config(smoothing=temporal_moving_average(0.9, buffers="keep"), seed=3)
    with pytest.raises(StateError, match=r"preserve_probability was 0\.5 and is now 0\.0; seed was 0 and is now 3"):
        tiny.tiny_fit(changed, tiny.runtime(tmp_path))
    skipping = replace(tiny.tiny_config().data, on_error="skip")
    operational = tiny.tiny_config(data=skipping, checkpoint_every_steps=5, keep_checkpoints=1, log_every_steps=7)
    assert tiny.tiny_fit(operational, tiny.runtime(tmp_path)).step == 12


class EarlierRuntime(LocalRuntime):
    """Restores what a version left in which `data.views` was called `data.recipe`."""

    def restore(self) -> dict[str, Any] | None:
        state = super().restore()
        if state is not None:
            data = state["meta"]["config"]["data"]
            data["recipe"] = data.pop("views")
        return state


def test_a_checkpoint_from_before_a_setting_was_renamed_is_resumed(tmp_path: Path) -> None:
    with pytest.raises(tiny.CrashError):
        tiny.tiny_fit(tiny.tiny_config(), tiny.CrashingRuntime(tmp_path, 6))
    other = tiny.tiny_config(data=replace(tiny.tiny_config().data, views="moco"))
    with pytest.raises(StateError, match=r"data\.views was 'byol' and is now 'moco'"):
        tiny.tiny_fit(other, EarlierRuntime(tmp_path, progress=False))
    assert tiny.tiny_fit(tiny.tiny_config(), EarlierRuntime(tmp_path, progress=False)).step == 12


def test_a_checkpoint_says_what_it_holds_and_only_the_last_few_stay(tmp_path: Path) -> None:
    tiny.tiny_fit(tiny.tiny_config(keep_checkpoints=2), tiny.runtime(tmp_path))
    folders = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert folders[-1] == "step-00000012"
    assert len(folders) <= 2
    meta = read_manifest(tmp_path / "checkpoints" / "step-00000012")["meta"]
    assert meta["config"]["method"] == {
        "name": "TinyConfig",
        "width": 8,
        "nan_at_step": -1,
        "nan_gradient_at_step": -1,
        "collapse_from_step": 1 << 30,
    }
    assert meta["config"]["smoothing"]["preserve_probability"] == 0.5
    assert (meta["step"], meta["epoch"], meta["world_size"], meta["label_split"]) == (12, 3.0, 1, None)
    assert meta["metrics"]["preserve_probability"] == 0.5
    assert json.loads((tmp_path / "config.json").read_text()) == meta["config"]
    assert json.loads((tmp_path / "training.json").read_text())["smoothing"] == meta["config"]["smoothing"]


def test_checkpoints_by_the_minute_are_written_when_metrics_are_logged(tmp_path: Path) -> None:
    runtime = tiny.CrashingRuntime(tmp_path, 6)
    config = tiny.tiny_config(checkpoint_every_steps=None, checkpoint_every_minutes=1e-9, log_every_steps=3)
    with pytest.raises(tiny.CrashError):
        tiny.tiny_fit(config, runtime)
    assert runtime.checkpoints.steps() == [3, 6]


def test_other_labels_than_those_a_run_was_started_with_are_refused() -> None:
    meta = {"config": {}, "label_split": "abc", "world_size": 1}
    check_resumable(meta, config={}, label_split="abc", images=None, world_size=1)
    with pytest.raises(StateError, match="label split was abc and is now def"):
        check_resumable(meta, config={}, label_split="def", images=None, world_size=1)


def _photos(folder: Path) -> Path:
    folder.mkdir()
    for number in range(8):
        Image.new("RGB", (12, 12), (30 * number, 0, 0)).save(folder / f"{number}.png")
    return folder


def test_a_dataset_may_move_as_a_whole_but_other_images_are_refused(tmp_path: Path) -> None:
    def go_on(root: Path) -> Any:
        data = DataConfig(dataset="images", root=str(root), image_size=8)
        return tiny.tiny_fit(tiny.tiny_config(data=data, global_batch_size=8, steps=2), tiny.runtime(tmp_path / "run"))

    go_on(_photos(tmp_path / "here"))
    moved = (tmp_path / "here").rename(tmp_path / "there")
    assert go_on(moved).step == 2
    (moved / "3.png").rename(moved / "9.png")
    with pytest.raises(StateError, match=r"they were 8 images, sha256 \w+ and are now 8 images, sha256"):
        go_on(moved)


def test_checkpoints_that_say_nothing_of_their_images_are_accepted() -> None:
    silent: dict[str, Any] = {"config": {}, "label_split": None, "world_size": 1}

    def accepted(before: str | None, now: str | None) -> bool:
        try:
            check_resumable(silent | {"images": before}, config={}, label_split=None, images=now, world_size=1)
        except StateError:
            return False
        return True

    check_resumable(silent, config={}, label_split=None, images="8 images", world_size=1)
    assert accepted(None, "8 images")
    assert accepted("8 images", None)
    assert not accepted("8 images", "9 images")
