"""Whole training steps of each method on null GPUs: alone and as rank 0 of 8, in every precision."""

from typing import Any

import pytest

from tests.null_gpu import machine
from tests.null_gpu.methods import METHODS

pytestmark = pytest.mark.slow

BOTH = {"teacher.safetensors", "student.safetensors"}


@pytest.fixture(scope="module")
def found_in_all() -> dict[str, Any]:
    """Device mix-ups, CPU tensors given to NCCL and operations without a CUDA kernel raise in here.

    One process for all methods: loading what they need takes longer than their steps.
    """
    return machine.answer("tests.null_gpu.run_steps", *METHODS, seconds=900)  # type: ignore[no-any-return]


@pytest.fixture(params=METHODS)
def found(request: pytest.FixtureRequest, found_in_all: dict[str, Any]) -> dict[str, Any]:
    return found_in_all[request.param]  # type: ignore[no-any-return]


def test_a_step_runs_on_the_device(found: dict[str, Any]) -> None:
    assert set(found["steps"]) == {f"{n} {kind}" for n in (1, 8) for kind in ("float32", "bfloat16", "float16")}
    for case, step in found["steps"].items():
        assert step["gradients"]["operations"] > 50, case
        assert step["teacher"]["kinds"].get("triton", 0) > 0, case


def test_a_batch_is_made_from_one_transfer(found: dict[str, Any]) -> None:
    assert {case: step["data"]["copies"] for case, step in found["steps"].items()} == dict.fromkeys(found["steps"], 1)


def test_a_bank_of_32_takes_four_launches_and_copies_no_buffers_in_a_step(found: dict[str, Any]) -> None:
    for world_size in ("1", "8"):
        alone, banked = (
            step["teacher"]["kinds"] for step in (found["steps"][f"{world_size} float32"], found["bank"][world_size])
        )
        assert banked.get("launch", 0) <= alone.get("launch", 0) + 4
        assert banked["triton"] <= alone["triton"] + 4, "units drawn, units, neurons, few neurons"


def test_only_several_ranks_communicate(found: dict[str, Any]) -> None:
    sent = {case: sum(phase["collectives"] for phase in step.values()) for case, step in found["steps"].items()}
    assert {case: num > 0 for case, num in sent.items()} == {case: case.startswith("8") for case in sent}


@pytest.mark.parametrize("world_size", ["1", "8"])
def test_a_run_with_a_bank_and_drift_verifies_saves_dies_and_resumes(found: dict[str, Any], world_size: str) -> None:
    run = found["everything"][world_size]
    assert (run["resumed_at"], run["step"]) == (5, 8)
    assert run["drift"] == ["output_drift", "parameter_drift"]
    assert run["devices"] == ["cuda:0"]
    assert run["unequal"] == []
    assert set(run["files"]) == BOTH | {"bank/first.safetensors", "bank/second.safetensors"}
