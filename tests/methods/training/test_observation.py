"""Measuring a method while it trains."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from sts_core import ConfigError
from sts_methods import Observation, StudentTeacherMethod, fit
from tests.methods.training import tiny_training as tiny


class DrawingMethod(tiny.TinyMethod):
    """Draws from torch's generator in every step, as methods of one's own may."""

    def forward(self, batch):  # type: ignore[no-untyped-def]
        result = super().forward(batch)
        return type(result)(result.loss * (1 + 0.1 * torch.rand(())), result.metrics)


def intrusive(method: StudentTeacherMethod) -> Mapping[str, float]:
    """Draws, and leaves the networks in the wrong mode."""
    torch.rand(7)
    method.eval()
    return {"knn/teacher/top1": float(method.backbone("teacher")(torch.ones(1, 3, 8, 8)).sum())}


def trained(
    folder: Path, observation: Observation | None, crash_at: int | None = None, **changes: Any
) -> tiny.TrainingResult:
    torch.manual_seed(0)
    runtime = tiny.runtime(folder) if crash_at is None else tiny.CrashingRuntime(folder, crash_at)
    kind = DrawingMethod if crash_at is None and not changes else tiny.TinyMethod
    method = kind(tiny.TinyConfig(), seed=0)
    return fit(tiny.tiny_config(**changes), runtime, method=method, observation=observation)


def test_the_bits_of_a_training_do_not_depend_on_whether_it_is_watched(tmp_path: Path) -> None:
    alone = trained(tmp_path / "alone", None)
    watched = trained(tmp_path / "watched", Observation(every_epochs=1, measure=intrusive))
    tiny.assert_same_bits(tiny.weights(alone), tiny.weights(watched))


def test_numbers_join_the_metrics_of_the_last_step_of_chosen_epochs(tmp_path: Path) -> None:
    result = trained(tmp_path, Observation(every_epochs=2, measure=intrusive))
    lines = [line for line in tiny.logged(tmp_path) if "knn/teacher/top1" in line]
    assert [line["step"] for line in lines] == [8], "an epoch is 4 steps, and the 12th ends the third"
    assert "knn/teacher/top1" not in result.metrics


def test_a_measurement_is_logged_where_nothing_else_would_be(tmp_path: Path) -> None:
    rare = {"log_every_steps": 100, "checkpoint_every_steps": None}
    trained(tmp_path, Observation(every_epochs=1, measure=intrusive), **rare)
    assert [line["step"] for line in tiny.logged(tmp_path)] == [4, 8, 12]


def test_a_run_that_crashes_after_a_measurement_resumes_to_the_same_numbers(tmp_path: Path) -> None:
    def weight(method: StudentTeacherMethod) -> Mapping[str, float]:
        return {"a/b/c": float(method.backbone("teacher")[0].weight.sum())}  # type: ignore[index]

    observation = Observation(every_epochs=1, measure=weight)
    straight = trained(tmp_path / "a", observation, seed=0)
    with pytest.raises(tiny.CrashError):
        trained(tmp_path / "b", observation, crash_at=4)
    resumed = trained(tmp_path / "b", observation, seed=0)
    tiny.assert_same_bits(tiny.weights(straight), tiny.weights(resumed))
    assert tiny.logged(tmp_path / "a") == tiny.logged(tmp_path / "b")


def test_never_is_said_by_leaving_the_observation_out() -> None:
    with pytest.raises(ConfigError, match="every_epochs must be at least 1, got 0"):
        Observation(every_epochs=0, measure=intrusive)
