"""Two ranks train what one trains, stay equal, notice when they do not, and stop together."""

import itertools
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sts_methods.runs.checkpoint import CheckpointStore, read_manifest
from tests import processes
from tests.methods.training import tiny_training as tiny

pytestmark = pytest.mark.slow  # two processes that import torch


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two real processes worked; one run was begun by one process alone."""
    folder: Path = tmp_path_factory.mktemp("ranks")
    with pytest.raises(tiny.CrashError):
        tiny.tiny_fit(tiny.tiny_config(accumulation=2), tiny.CrashingRuntime(folder / "alone", 6))
    tiny.write_photos(folder / "photos")
    script = str(Path(__file__).with_name("tiny_ranks.py"))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [processes.Process([sys.executable, script, rank, 2, folder], env=environment) for rank in range(2)]
    processes.finish_all(ranks)
    assert [rank.returncode for rank in ranks] == [0, 0]
    return folder


def _weights(folder: Path, name: str, rank: int) -> Mapping[str, Tensor]:
    weights: Mapping[str, Tensor] = torch.load(folder / f"{name}-{rank}.pt", weights_only=True)
    return weights


def _seen(folder: Path, rank: int) -> Any:
    return json.loads((folder / f"seen-{rank}.json").read_text())


def test_both_ranks_end_with_the_same_bits(group: Path) -> None:
    tiny.assert_same_bits(_weights(group, "straight", 0), _weights(group, "straight", 1))


def test_one_worker_equals_two_on_the_same_global_batch(group: Path, tmp_path: Path) -> None:
    alone = tiny.tiny_fit(tiny.tiny_config(accumulation=2), tiny.runtime(tmp_path))
    for name, tensor in _weights(group, "straight", 0).items():
        torch.testing.assert_close(tiny.weights(alone)[name], tensor, rtol=1e-3, atol=1e-5, msg=name)
    losses = [[entry["loss"] for entry in tiny.logged(folder)] for folder in (tmp_path, group / "straight")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_ranks_hold_a_part_of_the_bank_each_and_the_checkpoint_has_it_whole(group: Path) -> None:
    held = [_weights(group, "bank-straight", rank) for rank in range(2)]
    assert [list(part) for part in held] == [["m3", "m9"], ["m5"]]
    saved = CheckpointStore(group / "bank" / "checkpoints").latest()
    assert saved is not None
    assert list(saved["bank"]["applied"]) == ["m3", "m5", "m9"]
    for name, teacher in {**held[0], **held[1]}.items():
        tiny.assert_same_bits(saved["bank"]["teachers"][name], teacher)  # type: ignore[arg-type]
    for rank, run in itertools.product(range(2), ("bank-resumed", "bank-ahead")):
        for name, teacher in _weights(group, run, rank).items():
            tiny.assert_same_bits(teacher, held[rank][name])  # type: ignore[arg-type]


def test_a_resumed_group_ends_with_the_same_bits_as_an_undisturbed_one(group: Path) -> None:
    for rank in range(2):
        tiny.assert_same_bits(_weights(group, "straight", rank), _weights(group, "resumed", rank))


def test_a_run_resumes_with_another_number_of_workers_and_says_so(group: Path) -> None:
    told = "resuming on 2 workers what ran on 1: the batches and draws are the same, but sums round differently"
    for rank in range(2):
        assert any(told in notice for notice in _seen(group, rank)["notice"])
    for name, tensor in _weights(group, "straight", 0).items():
        torch.testing.assert_close(_weights(group, "moved", 0)[name], tensor, rtol=1e-3, atol=1e-5, msg=name)


def test_ranks_that_differ_by_one_bit_of_one_weight_are_stopped_and_the_weight_is_named(group: Path) -> None:
    for rank in range(2):
        failure = _seen(group, rank)["differs"]
        assert failure.startswith("RankMismatchError")
        assert "'teacher.5.weight' on rank 1 differs from rank 0's" in failure


def test_a_loss_that_is_not_finite_on_one_rank_stops_all_and_all_their_indices_are_saved(group: Path) -> None:
    assert [_seen(group, rank)["nan"].split(":")[0] for rank in range(2)] == ["NonFiniteLossError"] * 2
    report = json.loads((group / "nan" / "offending" / "nonfinite-step-00000002.json").read_text())
    assert [entry["loss"] == "nan" for entry in report["ranks"]] == [False, True]
    indices = [index for entry in report["ranks"] for micro in entry["indices"] for index in micro]
    assert len(set(indices)) == 352


def test_a_batch_that_is_not_finite_on_one_rank_is_left_out_and_forgotten_on_all(group: Path, tmp_path: Path) -> None:
    config = tiny.tiny_config(accumulation=2, steps=5, on_nonfinite="warn", method=tiny.TinyConfig(nan_at_step=2))
    with pytest.warns(UserWarning, match="the update was left out"):
        alone = tiny.tiny_fit(config, tiny.runtime(tmp_path))
    tiny.assert_same_bits(_weights(group, "left_out", 0), _weights(group, "left_out", 1))
    for name, tensor in _weights(group, "left_out", 0).items():
        torch.testing.assert_close(tiny.weights(alone)[name], tensor, rtol=1e-3, atol=1e-5, msg=name)


def test_skipped_images_and_drift_do_not_depend_on_the_number_of_workers(group: Path, tmp_path: Path) -> None:
    alone = tiny.tiny_fit(tiny.photos_config(group / "photos"), tiny.runtime(tmp_path)).metrics
    for rank in range(2):
        seen = _seen(group, rank)["photos"]
        assert seen["skipped_images"] == alone["skipped_images"] == 1
        assert seen["output_drift"] == pytest.approx(alone["output_drift"], rel=1e-2)


def test_a_rank_that_lists_its_images_for_longer_than_the_groups_time_out_is_waited_for(group: Path) -> None:
    for rank in range(2):
        seen = _seen(group, rank)
        assert seen["late"] == seen["photos"]["loss"]


def test_a_script_started_with_torchrun_trains_one_run_on_all_its_processes(tmp_path: Path) -> None:
    script = str(Path(__file__).with_name("tiny_training.py"))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = processes.run([*torchrun, script, tmp_path / "two", 4], env=environment)
    assert done.returncode == 0, done.stderr
    assert read_manifest(tmp_path / "two" / "checkpoints" / "step-00000004")["meta"]["world_size"] == 2
    tiny.tiny_fit(tiny.script_config(4), tiny.runtime(tmp_path / "one"))
    losses = [[entry["loss"] for entry in tiny.logged(tmp_path / name)] for name in ("one", "two")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
