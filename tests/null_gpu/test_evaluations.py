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
    products = {name: found[name]["kinds"].get("cublas", 0) for name in ("L-BFGS", "ridge")}
    assert min(products.values()) > 0, f"solved on the CPU: {products}"  # the backbone has none
    assert idle == ["export"], "which only reads the weights"
