"""Process groups on null GPUs: a tensor is sent from where it is, if the group takes it there."""

from typing import Any

import pytest

from tests.null_gpu import machine

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found() -> Any:
    return machine.answer("tests.null_gpu.run_groups")


@pytest.mark.parametrize("function", ["sum", "gather"])
def test_tensors_of_the_host_reach_nccl_only_where_there_is_nothing_else(found: Any, function: str) -> None:
    ray, torchrun = found["exchanged"]["Ray Train"], found["exchanged"]["torchrun"]
    assert ray[f"{function} cuda:0"] == torchrun[f"{function} cuda:0"] == [1, False, "cuda:0"]
    assert ray[f"{function} cpu"] == [1, True, "cpu"], "to the GPU and back"
    assert torchrun[f"{function} cpu"] == [0, False, "cpu"]


def test_a_run_under_torchrun_joins_a_group_for_both_devices(found: Any) -> None:
    assert found["joined"] == "cpu:gloo,cuda:nccl"
