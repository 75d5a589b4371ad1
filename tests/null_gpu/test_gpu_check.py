"""`ci/gpu-check` goes through on null GPUs, where nothing computes, and has nothing to do on a machine without GPUs."""

import sys
from pathlib import Path

import pytest

from tests import processes
from tests.null_gpu import machine

pytestmark = pytest.mark.slow
CHECK = (sys.executable, "-m", "tests.gpu.check")


def test_the_report_holds_facts_and_says_what_was_left_out(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    done = processes.run([*CHECK, path], env=machine.environment(num_gpus=2))
    report = path.read_text()
    assert done.returncode == 0, report
    assert "failed" not in report
    for fact in ("GPU 1: ", "sm_80", "'NCCL'", "byol float16, losses", "rank 1 of 2", "memory, peak and estimate"):
        assert fact in report, fact
    for left_out in ("test_an_update_equals_the_reference[", "test_a_resumed_run_is_bit_for_bit", "_those_of_the_cpu["):
        (line, *_) = [line for line in report.splitlines() if left_out in line]
        assert "skipped: Skipped: needs kernels that compute, and this GPU is a null GPU" in line


@pytest.mark.skipif(machine.why_not() == "this machine has GPUs", reason="this machine has GPUs")
def test_a_machine_without_gpus_is_told_so_in_a_sentence(tmp_path: Path) -> None:
    done = processes.run([*CHECK, tmp_path / "report.md"])
    assert (done.returncode, done.stderr) == (1, "There is nothing to check: torch sees no GPU on this machine.\n")
    assert not (tmp_path / "report.md").exists()
