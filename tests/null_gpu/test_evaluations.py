"""The evaluations on null GPUs: alone, with NCCL as under Ray Train, and with gloo beside it as under torchrun."""

from typing import Any

import pytest

from tests.null_gpu import machine

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("world_size", "backend"), [(1, "nccl"), (8, "nccl"), (8, "cpu:fake,cuda:nccl")])
def test_every_evaluation_runs_on_the_device(world_size: int, backend: str) -> None:
    found: dict[str, Any] = machine.answer("tests.null_gpu.run_evaluations", world_size, backend)
    assert {name: case["error"] for name, case in found.items() if "error" in case} == {}
    idle = [name for name, case in found.items() if case["operations"] == 0]
    # An export only reads the weights; detection is tried alone.
    assert idle == (["export"] if world_size == 1 else ["export", "detection"])
