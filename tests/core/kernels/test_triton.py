"""The Triton kernels: in Triton's interpreter, on a GPU if there is one, and compiled for GPUs that are not here."""

import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from sts_core.config import Granularity
from sts_core.errors import ConfigError
from sts_core.kernels import triton
from sts_core.kernels.interface import Kernel, Pair, Rule
from tests import processes

pytest.importorskip("triton", reason="this torch build brings no Triton")

CHECKS = Path(__file__).with_name("triton_checks.py")


def run_checks(**environment: str) -> processes.Finished:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(CHECKS)]
    return processes.run(command, env=os.environ | environment)


@pytest.mark.slow
def test_the_kernels_pass_all_checks_in_tritons_interpreter() -> None:
    done = run_checks(TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_kernels_pass_all_checks_on_the_gpu() -> None:
    done = run_checks(TRITON_INTERPRET="0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


class AbsentGpu:
    """As much of a Triton driver as a compilation asks for."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_device(self) -> int:
        return 1000 + self.capability  # no real device has this index, so no launch finds what is compiled here

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)


class CompileOnly:
    """Stands for `gpu_kernels`: a launch is compiled with the launch's own arguments, and not run."""

    def __init__(self, code: Any) -> None:
        self.code = code
        self.binaries: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.code, name)
        return _CompiledKernel(self, name, found) if hasattr(found, "warmup") else found


class _CompiledKernel:
    def __init__(self, owner: CompileOnly, name: str, kernel: Any) -> None:
        self.owner, self.name, self.kernel = owner, name, kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*args: object, **arguments: object) -> None:
            self.owner.binaries[self.name] = self.kernel.run(*args, grid=grid, warmup=True, **arguments)

        return launch


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter replaces the compiler")
@pytest.mark.parametrize(
    ("capability", "student_type"),
    [
        (75, torch.float16),
        (80, torch.float32),
        (86, torch.float16),
        (90, torch.bfloat16),
        (100, torch.float32),
        (120, torch.bfloat16),
    ],
)
def test_the_kernels_compile_to_machine_code(
    capability: int, student_type: torch.dtype, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from triton.runtime.driver import driver

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(driver, "_active", AbsentGpu(capability))
    student, teachers = torch.zeros(3000, dtype=student_type), tuple(torch.zeros(3000) for _ in range(4))
    kernel = triton.TritonKernel([Pair("w", student, teachers)])
    kernel._code = compiled = CompileOnly(kernel._code)
    kinds: list[tuple[float, Granularity]] = [(0.0, "layer"), (0.5, "channel"), (0.5, "neuron"), (0.99, "neuron")]
    kernel.update([Rule(0.99, p, granularity, 2**31, 2**64 - 1) for p, granularity in kinds])
    names = {"draw_units", "update_units", "update_neurons_dense", "update_neurons_sparse"}
    assert set(compiled.binaries) == names
    for name, binary in compiled.binaries.items():
        assert binary.asm["cubin"].startswith(b"\x7fELF"), name
        assert f".target sm_{capability}" in binary.asm["ptx"], name
        assert spilled_bytes(binary.asm["cubin"], tmp_path / f"{name}.cubin") == 0, name
    for access in ("ld.global.v4", "st.global.v4"):  # tensors side by side: 16 bytes at a time
        assert access in compiled.binaries["update_units"].asm["ptx"]


def spilled_bytes(cubin: bytes, path: Path) -> int:
    """The memory that a thread needs beyond its registers."""
    import triton

    path.write_bytes(cubin)
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    listing = processes.run([tool, "-res-usage", path]).stdout
    used = re.findall(r"(?:STACK|LOCAL):(\d+)", listing)
    assert used, listing
    return sum(map(int, used))


def pair_on_the_cpu() -> Pair:
    return Pair("w", torch.zeros(4), (torch.zeros(4),))


def test_tensors_on_the_cpu_are_left_to_others() -> None:
    pairs, kernels = [pair_on_the_cpu()], list[Kernel]()
    assert triton.claim(pairs, kernels, required=False) == pairs
    assert kernels == []


def test_requiring_triton_for_tensors_on_the_cpu_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ConfigError, match=r"one CUDA device, got tensors on cpu.*move both models to the GPU"):
        triton.claim([pair_on_the_cpu()], [], required=True)


def test_a_triton_that_does_not_work_gives_way_with_one_notice(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(triton, "_fits", lambda pair, device_type: True)
    monkeypatch.setattr(triton, "_problem", lambda device: "there is no C compiler")
    triton._notice_once.cache_clear()
    pairs, kernels = [pair_on_the_cpu()], list[Kernel]()
    with caplog.at_level(logging.WARNING, logger="sts_core"):
        assert triton.claim(pairs, kernels, required=False) == pairs
        assert triton.claim(pairs, kernels, required=False) == pairs
    assert kernels == []
    assert [r.getMessage() for r in caplog.records if "no C compiler" in r.getMessage()] == [
        caplog.records[0].getMessage()
    ]
    with pytest.raises(ConfigError, match="there is no C compiler: repair it"):
        triton.claim(pairs, kernels, required=True)


def test_the_trial_update_tells_why_triton_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr("importlib.import_module", missing)
    triton._problem.cache_clear()
    assert "ModuleNotFoundError (No module named 'sts_core.kernels.triton_device')" in triton._problem("cpu")
    triton._problem.cache_clear()
