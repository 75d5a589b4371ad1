"""What a runtime tells those who listen to a run, and in which order."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sts_core import temporal_moving_average
from sts_methods import CheckpointError, LocalRuntime, RunPlan
from tests.methods.training import tiny_training as tiny


class Notes:
    """A listener that writes down what it was told, and what it found in the run folder then."""

    def __init__(self, folder: Path, heard: list[str], name: str = "") -> None:
        self.folder, self.heard, self.name = folder, heard, name
        self.method: nn.Module | None = None

    def restore(self) -> None:
        self.heard.append(f"{self.name}restore")

    def start(self, plan: RunPlan, method: nn.Module) -> None:
        self.method = method
        written = " after config.json" if (self.folder / "config.json").is_file() else ""
        self.heard.append(f"{self.name}start at {plan.first_step}{written}")

    def report(self, metrics: Mapping[str, float], saved: Callable[[], None] | None) -> None:
        checkpoint = self.folder / "checkpoints" / f"step-{int(metrics['step']):08d}"
        if saved is not None:
            saved()
            assert checkpoint.is_dir()
        self.heard.append(f"{self.name}{'saved' if saved else 'logged'} {int(metrics['step'])}")

    def close(self) -> None:
        self.heard.append(f"{self.name}close")


def test_listeners_hear_of_a_run_in_order_and_after_its_files_are_written(tmp_path: Path) -> None:
    heard: list[str] = []
    config = tiny.tiny_config(steps=2, log_every_steps=1, checkpoint_every_steps=2)
    notes = Notes(tmp_path, heard)
    result = tiny.tiny_fit(config, LocalRuntime(tmp_path, progress=False, listeners=[notes]))
    assert heard == ["restore", "start at 0 after config.json", "logged 1", "saved 2", "close"]
    assert notes.method is result.method


def test_several_listeners_hear_everything_in_the_order_they_were_given(tmp_path: Path) -> None:
    heard: list[str] = []
    pair = [Notes(tmp_path, heard, "first "), Notes(tmp_path, heard, "second ")]
    config = tiny.tiny_config(steps=1)
    tiny.tiny_fit(config, LocalRuntime(tmp_path, progress=False, write_config=False, listeners=pair))
    expected = ["restore", "start at 0", "saved 1", "close"]
    assert heard == [f"{name} {event}" for event in expected for name in ("first", "second")]
    assert not (tmp_path / "config.json").exists()


def test_listeners_are_closed_even_when_the_last_checkpoint_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    runtime = LocalRuntime(tmp_path, progress=False, listeners=[Notes(tmp_path, heard)])

    def failing() -> None:
        raise CheckpointError("the disk is full")

    monkeypatch.setattr(runtime.checkpoints, "close", failing)
    with pytest.raises(CheckpointError, match="full"):
        runtime.close()
    assert heard == ["close"]


def test_a_checkpoint_that_is_asked_for_comes_after_the_next_step_and_goes_with_the_next_that_is_due(
    tmp_path: Path,
) -> None:
    answers: list[list[int]] = []
    asked = iter([False, False, True, False, False, False])

    def request() -> Callable[[], None] | None:
        return (lambda: answers.append(runtime.checkpoints.steps())) if next(asked) else None

    runtime = LocalRuntime(tmp_path, progress=False, request=request)
    config = tiny.tiny_config(steps=6, checkpoint_every_steps=2, keep_checkpoints=2)
    tiny.tiny_fit(config, runtime)
    assert answers == [[2, 3]]
    assert runtime.checkpoints.steps() == [4, 6]


def test_who_asks_after_a_step_that_has_a_checkpoint_is_answered_by_that(tmp_path: Path) -> None:
    answers: list[list[int]] = []
    asked = iter([None, lambda: answers.append(runtime.checkpoints.steps())])
    runtime = LocalRuntime(tmp_path, progress=False, request=lambda: next(asked, None))
    tiny.tiny_fit(tiny.tiny_config(steps=3, checkpoint_every_steps=2), runtime)
    assert answers == [[2]]
    assert runtime.checkpoints.steps() == [2, 3]


@pytest.mark.parametrize(
    ("changes", "shared_at"),
    [
        ({}, [12]),
        ({"checkpoint_every_steps": 5, "verify_ranks_every_steps": 3}, [3, 5, 6, 9, 10, 12]),
        ({"log_every_steps": 6}, [6, 12]),
    ],
)
def test_ranks_share_their_statistics_before_somebody_reads_them(
    changes: dict[str, Any], shared_at: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, found = [0], list[int]()
    monkeypatch.setattr(tiny.TinyMethod, "share_statistics_", lambda self: found.append(steps[-1]), raising=False)
    rarely = {"log_every_steps": 100, "checkpoint_every_steps": None, "verify_ranks_every_steps": None}
    runtime = LocalRuntime(tmp_path, progress=False, on_step=steps.append)
    tiny.tiny_fit(tiny.tiny_config(**(rarely | changes)), runtime)
    assert [last + 1 for last in found] == shared_at


@pytest.mark.parametrize("whose", ["own", "bank"])
def test_ranks_share_the_statistics_that_a_teacher_smooths_before_it_does(
    whose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smoothing = temporal_moving_average(0.9, buffers="smooth")
    changes: dict[str, Any] = {"smoothing": smoothing} if whose == "own" else {"bank": {"other": smoothing}}
    monkeypatch.setattr(
        tiny.TinyMethod, "share_statistics_", lambda self: self.student[1].running_mean.fill_(1e4), raising=False
    )
    monkeypatch.setattr(tiny.TinyMethod, "teacher_buffers", "smooth" if whose == "own" else "keep")
    result = tiny.tiny_fit(tiny.tiny_config(steps=1, **changes), tiny.runtime(tmp_path))
    teacher = result.method.teacher if whose == "own" else result.bank["other"]
    torch.testing.assert_close(teacher[1].running_mean, torch.full((8,), 1e3), atol=10.0, rtol=0.0)  # 0.9 of its own


def test_a_run_that_resumes_from_a_checkpoint_ahead_of_time_is_the_run_that_nobody_disturbed(tmp_path: Path) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    config = tiny.tiny_config(steps=5, checkpoint_every_steps=5)
    steps = iter(range(1, 6))
    disturbed = LocalRuntime(tmp_path / "a", progress=False, request=lambda: stop if next(steps) == 3 else None)
    with pytest.raises(KeyboardInterrupt):
        tiny.tiny_fit(config, disturbed)
    assert disturbed.checkpoints.steps() == [3]
    resumed = tiny.tiny_fit(config, LocalRuntime(tmp_path / "a", progress=False))
    calm = tiny.tiny_fit(config, LocalRuntime(tmp_path / "b", progress=False))
    expected, found = calm.method.state_dict(), resumed.method.state_dict()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
