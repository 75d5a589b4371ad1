"""Checkpoints under kills, torn files, full disks and slow ones."""

import contextlib
import json
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sts_methods import CheckpointError
from sts_methods.runs import checkpoint
from sts_methods.runs.checkpoint import (
    CheckpointStore,
    read_checkpoint,
    read_manifest,
    snapshot,
    verify_checkpoint,
    write_checkpoint,
)
from tests import processes


def _state(step: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(step)
    weight = torch.randn(4, 3, 5, 5, generator=generator).to(memory_format=torch.channels_last)
    return {
        "meta": {"step": step, "config": {"lr": 0.1}},
        "method": {"weight": weight, "count": torch.tensor(step)},
        "optimizer": {"state": {0: {"momentum_buffer": weight * 2}}, "param_groups": [{"lr": 0.1, "params": (0,)}]},
        "bank": None,
    }


def _weight(state: dict[str, Any]) -> torch.Tensor:
    weight: torch.Tensor = state["method"]["weight"]
    return weight


def test_a_state_comes_back_as_it_was_written_layout_included(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "c", _state(7))
    state = read_checkpoint(tmp_path / "c")
    assert torch.equal(_weight(state), _weight(_state(7)))
    assert _weight(state).is_contiguous(memory_format=torch.channels_last)
    assert state["optimizer"]["param_groups"] == [{"lr": 0.1, "params": (0,)}]
    assert list(state["optimizer"]["state"]) == [0]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c"]


def test_the_manifest_tells_what_a_checkpoint_is_without_reading_it(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "c", _state(7))
    assert read_manifest(tmp_path / "c")["meta"] == {"step": 7, "config": {"lr": 0.1}}


def test_writing_over_a_checkpoint_replaces_it(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "c", _state(1))
    write_checkpoint(tmp_path / "c", _state(2))
    assert read_checkpoint(tmp_path / "c")["meta"]["step"] == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c"]


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [_cut, _flip, Path.unlink])
def test_a_damaged_state_is_noticed(tmp_path: Path, damage: Any) -> None:
    write_checkpoint(tmp_path / "c", _state(7))
    damage(tmp_path / "c" / "state.pt")
    with pytest.raises(CheckpointError, match=r"state\.pt"):
        verify_checkpoint(tmp_path / "c")


@pytest.mark.parametrize("content", ["", "{", "[]", json.dumps({"format": "other"})])
def test_a_damaged_manifest_is_noticed(tmp_path: Path, content: str) -> None:
    write_checkpoint(tmp_path / "c", _state(7))
    (tmp_path / "c" / "manifest.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"manifest"):
        read_checkpoint(tmp_path / "c")


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "c", {"meta": {}, "path": Path("x")})
    with pytest.raises(Exception, match="weights_only"):
        read_checkpoint(tmp_path / "c")


def test_a_snapshot_does_not_follow_later_steps() -> None:
    live: dict[str, Any] = {"a": [torch.zeros(3)], "b": (torch.ones(2), None, 1.5)}
    copied = snapshot(live)
    live["a"][0].add_(1.0)
    assert copied["a"][0].tolist() == [0.0, 0.0, 0.0]
    assert copied["b"][1:] == (None, 1.5)


def test_the_last_few_are_kept_and_the_newest_is_restored(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    for step in (1, 2, 3, 10):
        store.save(step, _state(step))
        store.wait()
    assert store.steps() == [3, 10]
    newest = CheckpointStore(tmp_path).latest()
    assert newest is not None
    assert newest["meta"]["step"] == 10


def test_without_a_checkpoint_there_is_nothing_to_restore(tmp_path: Path) -> None:
    assert CheckpointStore(tmp_path / "nowhere").latest() is None


@pytest.mark.parametrize("damage", [_cut, _flip])
def test_a_torn_newest_is_passed_over_with_a_warning_and_the_one_before_used(tmp_path: Path, damage: Any) -> None:
    for step in (1, 2, 3):
        write_checkpoint(CheckpointStore(tmp_path).path(step), _state(step))
    damage(tmp_path / "step-00000003" / "state.pt")
    (tmp_path / "step-00000002" / "manifest.json").unlink()
    with pytest.warns(UserWarning, match="damaged") as warned:
        state = CheckpointStore(tmp_path).latest()
    assert [("step-00000003" in str(w.message), "step-00000002" in str(w.message)) for w in warned] == [
        (True, False),
        (False, True),
    ]
    assert state is not None
    assert torch.equal(_weight(state), _weight(_state(1)))


def test_a_damaged_newer_one_does_not_cost_the_checkpoint_just_written(tmp_path: Path) -> None:
    for step in (1, 8, 9):
        write_checkpoint(CheckpointStore(tmp_path).path(step), _state(step))
    for step in (8, 9):
        _cut(CheckpointStore(tmp_path).path(step) / "state.pt")
    store = CheckpointStore(tmp_path, keep=1)
    with pytest.warns(UserWarning, match="damaged"):
        assert store.newest_intact() == 1
    store.save(2, _state(2))
    store.close()
    assert store.steps() == [2]
    assert store.newest_intact() == 2


def test_what_a_killed_writer_left_behind_is_not_taken_for_a_checkpoint(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "step-00000001", _state(1))
    partial = tmp_path / ".step-00000002.partial"
    partial.mkdir()
    (partial / "state.pt").write_bytes(b"half")
    store = CheckpointStore(tmp_path)
    assert store.steps() == [1]
    store.save(3, _state(3))
    store.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000001", "step-00000003"]


def test_a_state_that_cannot_be_written_is_told_and_does_not_end_the_writing_of_others(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, {"meta": {"step": object()}})
    store.wait()
    with pytest.warns(UserWarning, match="pickle|serializable"):
        store.save(2, _state(2))
    store.close()
    assert store.steps() == [2]
    store.save(3, {"meta": {"step": {1, 2}}})
    with pytest.raises(TypeError, match="serializable"):
        store.close()


def test_a_step_waits_for_a_copy_and_not_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, disk = threading.Event(), threading.Event()

    def slow_write(folder: Path, state: dict[str, Any]) -> None:
        begun.set()
        assert disk.wait(timeout=60)
        write_checkpoint(folder, state)

    monkeypatch.setattr(checkpoint, "write_checkpoint", slow_write)
    store = CheckpointStore(tmp_path, keep=5)
    state = _state(0)
    for step in (1, 2, 3):  # returns though nothing can be written yet
        state["method"]["weight"].fill_(step)
        store.save(step, state)
        assert begun.wait(timeout=60)
    assert store.steps() == []
    disk.set()
    store.close()
    # The first was being written; of the two that waited, the newest was worth writing.
    assert store.steps() == [1, 3]
    assert store.skipped == 1
    assert [float(_weight(read_checkpoint(store.path(step))).mean()) for step in (1, 3)] == [1.0, 3.0]


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Files cannot grow beyond one kilobyte, as on a disk without space; lifted before pytest writes its own output."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_gives_a_clear_error_and_leaves_no_rubbish(tmp_path: Path) -> None:
    message = r"File too large.*earlier ones are untouched; free some space"
    with full_disk(), pytest.raises(CheckpointError, match=message):
        write_checkpoint(tmp_path / "c", _state(1))
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_warns_while_training_and_fails_at_the_end_and_spares_the_previous(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=1)
    store.save(1, _state(1))
    store.wait()
    with full_disk():
        store.save(2, _state(2))
        store.wait()
        with pytest.warns(UserWarning, match="free some space"):
            store.save(3, _state(3))
        with pytest.raises(CheckpointError, match="step-00000003"):
            store.close()
    state = store.latest()
    assert state is not None
    assert state["meta"]["step"] == 1


@pytest.mark.slow
def test_a_killed_process_never_leaves_a_checkpoint_that_is_torn(tmp_path: Path) -> None:
    script = (
        "import pathlib, sys, torch\n"
        "from sts_methods.runs.checkpoint import write_checkpoint\n"
        "pathlib.Path(sys.argv[2]).touch()\n"
        "for step in range(1, 1000000):\n"
        "    state = {'meta': {'step': step}, 'x': torch.full((1000,), step)}\n"
        "    write_checkpoint(f'{sys.argv[1]}/step-{step % 4:08d}', state)\n"
    )
    for round_number in range(2):
        ready = tmp_path / f"ready-{round_number}"
        with processes.Process([sys.executable, "-c", script, tmp_path / "run", ready]) as process:
            processes.wait_until(ready.exists, process)
            time.sleep(0.2 + 0.17 * round_number)
            assert process.poll() is None
            process.kill()
        store = CheckpointStore(tmp_path / "run")
        assert store.steps()
        for step in store.steps():
            state = read_checkpoint(store.path(step))
            assert state["x"].unique().tolist() == [state["meta"]["step"]]
