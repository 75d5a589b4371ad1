"""Teachers in the host's memory of students on a GPU: what travels is what is drawn, and the bits are the same."""

from typing import Any

import pytest

from tests.null_gpu import machine

pytestmark = pytest.mark.slow  # all of them wait for one process


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return machine.answer("tests.null_gpu.run_offload", num_gpus=1)


def test_every_teacher_is_bit_for_bit_the_one_beside_its_student(found: dict[str, Any]) -> None:
    assert len(found["cases"]) == 21
    assert [name for name, case in found["cases"].items() if not case["same"]] == []
    assert [bank["same"] for bank in found["banks"]] == [True, True]


def test_only_what_is_drawn_travels(found: dict[str, Any]) -> None:
    cases = found["cases"]
    for name in ("layer, now", "layer, deferred", "module, now", "smooth buffers, now", "own buffers, now"):
        assert cases[name]["bytes"] == cases[name]["moved"], name
    assert 0.22 < cases["layer, now"]["bytes"] / cases["layer, now"]["whole"] < 0.38, "p = 0.7"
    assert cases["bfloat16 student"]["bytes"] == cases["bfloat16 student"]["moved"] < cases["layer, now"]["bytes"] * 0.6
    assert cases["average, now"]["bytes"] == cases["neuron, now"]["bytes"] == cases["neuron, now"]["whole"]
    assert cases["momentum 1, now"]["bytes"] < 0.3 * cases["momentum 1, now"]["whole"], "buffers alone"


def test_one_copy_of_the_student_serves_a_whole_bank(found: dict[str, Any]) -> None:
    for bank in found["banks"]:
        # Twice at most, since one teacher smooths the statistics, too, and is updated apart from the others.
        assert bank["parameters"] <= bank["bytes"] < 2 * bank["parameters"]


def test_copies_go_to_pinned_memory_that_is_there_and_the_device_computes_nothing(found: dict[str, Any]) -> None:
    for name, case in found["cases"].items():
        assert (case["pageable copies"], case["operations"], case["allocations"]) == (0, 0, 0), name
        waits = 1 if name.startswith(("momentum 1", "own buffers")) else 2  # all weights together, all buffers together
        early = {0} if "deferred" in name or name == "bfloat16 teacher" else set()  # when the teacher was read before
        assert set(case["waits"]) == {waits} | early, name
    assert found["memory"] == 0, "a teacher is made in the host's memory at once"


def test_a_deferred_update_is_finished_before_the_teacher_is_read(found: dict[str, Any]) -> None:
    assert set(found["reading"]) > {"kept parameters are those before", "swapped", "state dict", "call", "attribute"}
    assert [way for way, holds in found["reading"].items() if not holds] == []


def test_a_deferred_update_is_not_lost_and_comes_on_top_of_nothing(found: dict[str, Any]) -> None:
    assert len(found["meddling"]) == 5
    assert [what for what, holds in found["meddling"].items() if not holds] == []


def test_updates_of_a_teacher_on_the_device_cannot_be_deferred(found: dict[str, Any]) -> None:
    assert found["refusal"] == (
        "deferred updates are for a teacher in the host's memory, this one is on cuda: make it by "
        "make_teacher(student, device='cpu'), or leave deferred out"
    )
