"""Runs programs on null GPUs: GPUs that count what they are asked to do, and do nothing (README.md)."""

import json
import os
import sys
from typing import Any

import pytest

from tests import processes
from tests.null_gpu.build import build, why_not


def environment(*, num_gpus: int = 8, capability: int = 80, memory_gib: float = 80.0) -> dict[str, str]:
    """The variables under which a process sees null GPUs; skips the test where there can be none."""
    if reason := why_not():
        pytest.skip(reason)
    folder = build()
    return os.environ | {
        "LD_PRELOAD": str(folder / "libnullgpu.so"),
        "LD_LIBRARY_PATH": str(folder),
        "TRITON_LIBCUDA_PATH": str(folder),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "NULLGPU_LIBRARY": str(folder / "libnullgpu.so"),
        "NULLGPU_DEVICES": str(num_gpus),
        "NULLGPU_CAPABILITY": str(capability),
        "NULLGPU_MEMORY_GIB": str(memory_gib),
        "TORCH_CUDNN_V8_API_DISABLED": "1",  # the newer interface asks for more than a null cuDNN can say
        "TORCH_NCCL_ENABLE_MONITORING": "0",  # its thread would wait for the ranks that are not there
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
        "OMP_NUM_THREADS": "1",
    }


def run(module: str, *arguments: object, seconds: float = processes.SECONDS, **gpus: Any) -> processes.Finished:
    """The finished process `python -m module arguments` on null GPUs."""
    return processes.run([sys.executable, "-m", module, *arguments], env=environment(**gpus), seconds=seconds)


def answer(module: str, *arguments: object, **options: Any) -> Any:
    """The JSON value in the last line that a module prints on null GPUs."""
    done = run(module, *arguments, **options)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return json.loads(done.stdout.splitlines()[-1])
