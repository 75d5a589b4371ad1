"""The null GPU sees what it is there to see: each defect is planted once."""

import signal
from typing import Any

import pytest

from tests.null_gpu import machine

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    return machine.answer("tests.null_gpu.run_defects")


def test_a_process_sees_eight_gpus_and_copies_are_real(seen: dict[str, Any]) -> None:
    assert seen["devices"] == 8
    assert seen["a copy there and back"]


def test_doing_nothing_counts_nothing(seen: dict[str, Any]) -> None:
    assert not seen["nothing"]["kinds"]


def test_an_extra_launch_is_counted(seen: dict[str, Any]) -> None:
    assert [seen[name]["operations"] for name in ("one launch", "two launches", "a product")] == [1, 2, 1]


def test_reading_a_number_waits_and_the_line_that_does_is_found(seen: dict[str, Any]) -> None:
    assert seen["an item"]["syncs"] == 1
    assert seen["a sum that is not read"]["syncs"] == 0
    ((place, times),) = seen["where the item was read"].items()
    assert place.startswith("stream_sync run_defects.py:")
    assert times == 1


def test_copies_from_pageable_memory_are_told_from_pinned_ones(seen: dict[str, Any]) -> None:
    kinds = ("a pageable copy", "a pinned copy")
    assert [(seen[kind]["copies"], seen[kind]["pageable_copies"]) for kind in kinds] == [(1, 1), (1, 0)]
    assert [seen[kind]["copied_bytes"] for kind in kinds] == [60, 60]


def test_a_buffer_that_stayed_on_the_cpu_is_an_error(seen: dict[str, Any]) -> None:
    assert "on the same device" in seen["a CPU buffer"]


def test_memory_ends_where_the_gpus_would_and_its_peak_is_known(seen: dict[str, Any]) -> None:
    assert "of which 80.00 GiB is free" in seen["too much memory"]
    assert (1 << 30) <= seen["peak of a GiB"] < (1 << 30) + 4096


def test_collectives_are_counted_with_their_bytes_and_other_ranks_hold_the_same(seen: dict[str, Any]) -> None:
    assert (seen["sent"]["collectives"], seen["sent"]["collective_bytes"]) == (2, 1000 * 4 + 8 * 3 * 8)
    assert seen["gathered"] == 8 * [0, 1, 2]


def test_a_cpu_tensor_has_no_way_into_nccl(seen: dict[str, Any]) -> None:
    assert "No backend type associated with device type cpu" in seen["a CPU tensor"]
    assert seen["a CPU tensor beside gloo"] == ""
    assert seen["host memory in NCCL"] == -signal.SIGABRT


def test_a_library_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = machine.environment()["NULLGPU_LIBRARY"]
    machine.build.cache_clear()
    monkeypatch.setattr("tests.null_gpu.build._build", lambda target: pytest.fail("it was there already"))
    assert machine.environment()["NULLGPU_LIBRARY"] == folder


@pytest.mark.parametrize("problem", ["there is no C compiler with nm", "torch 2.0 is no CUDA build"])
def test_where_it_cannot_be_built_tests_are_skipped_with_the_reason(
    problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "why_not", lambda: problem)
    with pytest.raises(pytest.skip.Exception, match=problem):
        machine.environment()
