"""What stops a training, and what is left out of it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sts_methods.batch import Batch
from sts_methods.data.batches import build_training_data
from sts_methods.data.config import DataConfig
from sts_methods.methods.base import StepResult
from sts_methods.methods.moco import MoCo, MoCoConfig
from sts_methods.training.config import TrainingConfig
from sts_methods.training.failure_checks import CollapseError, NonFiniteLossError
from sts_methods.training.loop import fit
from tests.methods.training import tiny_training as tiny


def test_a_nonfinite_loss_stops_before_it_touches_the_weights(tmp_path: Path) -> None:
    config = tiny.tiny_config(method=tiny.TinyConfig(nan_at_step=5), checkpoint_every_steps=1)
    with pytest.raises(NonFiniteLossError, match="step 5"):
        tiny.tiny_fit(config, tiny.runtime(tmp_path))
    report = json.loads((tmp_path / "offending" / "nonfinite-step-00000005.json").read_text())
    batch = next(build_training_data(config.data, seed=0, global_batch_size=352).steps(5))[0]
    assert report["ranks"] == [{"indices": [batch.indices.tolist()], "loss": "nan"}]
    state = tiny.runtime(tmp_path).restore()
    assert state is not None
    assert state["meta"]["step"] == 5
    assert all(torch.isfinite(tensor).all() for tensor in state["method"].values())


def test_a_gradient_that_is_not_finite_stops_before_it_touches_the_weights(tmp_path: Path) -> None:
    config = tiny.tiny_config(method=tiny.TinyConfig(nan_gradient_at_step=5), log_every_steps=4)
    with pytest.raises(NonFiniteLossError, match="the gradients must be finite, but are not at step 5"):
        tiny.tiny_fit(config, tiny.runtime(tmp_path))
    assert (tmp_path / "offending" / "nonfinite-step-00000005.json").exists()


class Explosive(tiny.TinyMethod):
    """Its weights leave the range of float32 by themselves."""

    def adjust_gradients_(self, step: int) -> None:
        if step == 5:
            self.predictor.bias.data.fill_(float("inf"))


def test_weights_that_are_not_finite_never_reach_a_checkpoint(tmp_path: Path) -> None:
    config = tiny.tiny_config()
    with pytest.raises(NonFiniteLossError, match=r"'predictor\.bias' is not at step 6"):
        fit(config, tiny.runtime(tmp_path), method=Explosive(tiny.TinyConfig(), seed=0))
    state = tiny.runtime(tmp_path).restore()
    assert state is not None
    assert state["meta"]["step"] == 4


def test_a_nonfinite_loss_can_be_left_out_with_a_warning(tmp_path: Path) -> None:
    config = tiny.tiny_config(method=tiny.TinyConfig(nan_at_step=5), on_nonfinite="warn")
    runtime = tiny.runtime(tmp_path)
    with pytest.warns(UserWarning, match="the update was left out"):
        result = tiny.tiny_fit(config, runtime)
    assert all(torch.isfinite(tensor).all() for tensor in result.method.state_dict().values())
    state = runtime.restore()
    assert state is not None
    assert state["smoother"]["step"] == 11
    entry = tiny.logged(tmp_path)[5]
    assert (entry["left_out_batches"], "loss" in entry) == (1, False)


def test_a_batch_that_is_left_out_does_not_count_in_the_metrics_beside_it(tmp_path: Path) -> None:
    method = tiny.TinyConfig(nan_at_step=5, collapse_from_step=4)
    config = tiny.tiny_config(method=method, on_nonfinite="warn", log_every_steps=4, checkpoint_every_steps=None)
    with pytest.warns(UserWarning, match="left out|collapsed"):
        tiny.tiny_fit(config, tiny.runtime(tmp_path / "four"))
    with pytest.warns(UserWarning, match="left out|collapsed"):
        tiny.tiny_fit(replace(config, log_every_steps=1), tiny.runtime(tmp_path / "one"))
    assert (tmp_path / "four" / "offending" / "collapse-step-00000008.json").exists()
    entries, single = tiny.logged(tmp_path / "four"), tiny.logged(tmp_path / "one")
    assert [entry["left_out_batches"] for entry in entries] == [0, 1, 0]
    accepted = [entry["loss"] for entry in single[4:8] if "loss" in entry]
    assert len(accepted) == 3
    assert entries[1]["loss"] == pytest.approx(sum(accepted) / 3)


class SpoiledMoCo(MoCo):
    """MoCo whose second batch has infinite pixels."""

    def forward(self, batch: Batch) -> StepResult:
        views = tuple(view / (batch.step != 1) for view in batch.views)
        return super().forward(replace(batch, views=views))


def test_a_batch_that_is_left_out_leaves_nothing_in_the_queue_and_the_statistics(tmp_path: Path) -> None:
    method = MoCoConfig(backbone="wrn_10_1", stem="cifar", dim=8, queue_size=64, bn_groups=2)
    data = DataConfig(views="moco", image_size=8)
    config = TrainingConfig(
        method=method, data=data, global_batch_size=16, steps=3, checkpoint_every_steps=1, on_nonfinite="warn"
    )
    with pytest.warns(UserWarning, match="the update was left out"):
        result = fit(config, tiny.runtime(tmp_path), method=SpoiledMoCo(method, seed=0))
    assert result.step == 3
    tensors = result.method.state_dict()
    assert all(torch.isfinite(tensor).all() for tensor in tensors.values())
    assert tensors["queue_position"] == 32
    assert {int(tensors[name]) for name in tensors if name.endswith("num_batches_tracked")} == {2}


def test_collapsed_features_stop_the_run_or_warn_once(tmp_path: Path) -> None:
    method = tiny.TinyConfig(collapse_from_step=7)
    with pytest.raises(CollapseError, match=r"step 8: feature_std is 0, below 0\.001"):
        tiny.tiny_fit(tiny.tiny_config(method=method, on_collapse="stop"), tiny.runtime(tmp_path / "stop"))
    assert (tmp_path / "stop" / "offending" / "collapse-step-00000008.json").exists()
    with pytest.warns(UserWarning, match="collapsed") as warned:
        result = tiny.tiny_fit(tiny.tiny_config(method=method), tiny.runtime(tmp_path / "warn"))
    assert len(warned) == 1
    assert result.step == 12
