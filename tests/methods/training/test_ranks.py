"""One process equals two: batch norm, every method's losses, gradients and buffers, on the same global batch."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests import processes
from tests.methods.training import rank_cases as cases

SCRIPT = Path(__file__).with_name("rank_cases.py")

Results = dict[str, Any]

pytestmark = pytest.mark.slow  # all of them wait for the processes of the first


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, Results]:
    """The results of all cases on each of two gloo processes, computed once for the whole file."""
    folder = tmp_path_factory.mktemp("ranks")
    outputs = [folder / f"rank{rank}.pt" for rank in range(2)]
    ranks = [
        processes.Process(
            [sys.executable, str(SCRIPT), str(rank), "2", str(folder / "store"), str(output)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stderr=processes.PIPE,
            text=True,
        )
        for rank, output in enumerate(outputs)
    ]
    errors = [written for _, written in processes.finish_all(ranks)]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(errors)
    first, second = (torch.load(output, weights_only=True) for output in outputs)
    return first, second


@pytest.fixture(scope="module")
def one_process() -> Results:
    results: Results = cases.run_all()
    return results


def assert_close(actual: dict[str, Tensor], expected: dict[str, Tensor], *, tolerance: float) -> None:
    """Equal names, and each tensor within `tolerance` of the largest value of its counterpart."""
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        allowed = tolerance * tensor.abs().max().item() + 2e-6
        assert (actual[name] - tensor).abs().max().item() <= allowed, name


def test_rows_reach_the_rank_that_wants_them_in_its_order_and_keep_their_format(
    two_ranks: tuple[Results, Results], one_process: Results
) -> None:
    for ranks in ((one_process,), two_ranks):
        parts = [rank["exchange"]["mine"] for rank in ranks]
        images, order = (ranks[0]["exchange"][name] for name in ("images", "order"))
        assert torch.equal(torch.cat(parts), images[order])
        assert all(part.is_contiguous(memory_format=torch.channels_last) for part in parts)


@pytest.mark.parametrize("kind", cases.NORM_INPUTS)
def test_cross_rank_batch_norm_on_two_ranks_equals_one_process_on_the_whole_batch(
    kind: str, two_ranks: tuple[Results, Results], one_process: Results
) -> None:
    first, second = (result[f"norm_{kind}"] for result in two_ranks)
    whole = one_process[f"norm_{kind}"]
    # Values near 30 carry rounding of 2e-6 themselves, bfloat16 that of its 8 bits.
    tolerance = {"offset": 1e-5, "bfloat16": 2e-2, "float64": 1e-12}.get(kind, 1e-6)
    for name in ("y", "dx"):
        torch.testing.assert_close(torch.cat([first[name], second[name]]), whole[name], rtol=0.0, atol=tolerance)
    for name in ("dweight", "dbias"):
        torch.testing.assert_close(first[name] + second[name], whole[name], rtol=tolerance, atol=tolerance)
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        torch.testing.assert_close(first[name], whole[name], rtol=tolerance, atol=tolerance)
        assert torch.equal(first[name], second[name])


@pytest.mark.parametrize("kind", ["channels_last", "as_on_a_gpu_channels_last"])
def test_cross_rank_batch_norm_keeps_channels_last(kind: str, two_ranks: tuple[Results, Results]) -> None:
    y = two_ranks[0][f"norm_{kind}"]["y"]
    assert y.is_contiguous(memory_format=torch.channels_last)


def test_on_gpus_batch_norm_is_bit_for_bit_that_of_torch(two_ranks: tuple[Results, Results]) -> None:
    for results in two_ranks:
        ours, torchs = results["norm_as_on_a_gpu"], results["norm_by_torch_on_a_gpu"]
        assert ours.keys() == torchs.keys()
        assert all(torch.equal(ours[name], torchs[name]) for name in ours)


@pytest.mark.parametrize("name", cases.METHODS)
def test_two_workers_compute_the_loss_and_gradients_of_one(
    name: str, two_ranks: tuple[Results, Results], one_process: Results
) -> None:
    first, second = (result[name] for result in two_ranks)
    whole = one_process[name]
    mean = (first["losses"] + second["losses"]) / 2
    torch.testing.assert_close(mean, whole["losses"], rtol=2e-5, atol=1e-6)
    assert_close(first["gradients"], whole["gradients"], tolerance=2e-5)


@pytest.mark.parametrize("name", cases.METHODS)
def test_after_two_steps_all_tensors_are_equal_on_all_ranks_and_those_of_one_worker(
    name: str, two_ranks: tuple[Results, Results], one_process: Results
) -> None:
    first, second = (result[name]["state"] for result in two_ranks)
    assert first.keys() == second.keys()
    for tensor in first:
        assert torch.equal(first[tensor], second[tensor]), tensor
    assert_close(first, one_process[name]["state"], tolerance=5e-5)


@pytest.mark.parametrize("name", cases.ACCUMULATED)
def test_two_workers_accumulate_the_gradients_of_one_over_the_same_micro_batches(
    name: str, two_ranks: tuple[Results, Results], one_process: Results
) -> None:
    first, second = (result[f"accumulated_{name}"] for result in two_ranks)
    whole = one_process[f"accumulated_{name}"]
    torch.testing.assert_close((first["loss"] + second["loss"]) / 2, whole["loss"], rtol=2e-5, atol=1e-6)
    assert_close(first["gradients"], whole["gradients"], tolerance=2e-5)
    assert_close(second["gradients"], first["gradients"], tolerance=0.0)


@pytest.mark.parametrize("name", cases.UNEVEN)
def test_two_workers_with_unequal_shares_of_a_batch_take_the_step_of_one(
    name: str, two_ranks: tuple[Results, Results], one_process: Results
) -> None:
    first, second = (result[f"uneven_{name}"] for result in two_ranks)
    whole = one_process[f"uneven_{name}"]
    torch.testing.assert_close((first["loss"] + second["loss"]) / 2, whole["loss"], rtol=2e-5, atol=1e-6)
    assert_close(first["gradients"], whole["gradients"], tolerance=2e-5)
    assert_close(first["state"], whole["state"], tolerance=5e-5)
    assert_close(second["state"], first["state"], tolerance=0.0)


@pytest.mark.parametrize("name", ["moco_2_groups", "moco_4_groups"])
def test_group_batch_norm_and_shuffling_change_the_result(name: str, one_process: Results) -> None:
    """The comparison above would also hold if groups and shuffling did nothing."""
    assert not torch.allclose(one_process[name]["losses"], one_process["moco_unshuffled"]["losses"], atol=1e-4)
