"""Reduced precision where the hardware has it: bfloat16 on a CPU without it is up to 25 times slower than float32."""

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch

from sts_core import Precision


def cpu_supports(precision: Precision) -> bool:
    """Whether this CPU multiplies in `precision` (AVX512 or AMX); emulation does not count."""
    if precision == "float32":
        return True
    # get_capabilities is public since torch 2.10; older ones have the two private probes only.
    if hasattr(torch.cpu, "get_capabilities"):
        found = torch.cpu.get_capabilities()
        suffix = "bf16" if precision == "bfloat16" else "fp16"
        return any(found.get(f"{unit}_{suffix}", False) for unit in ("avx512", "amx"))
    return precision == "bfloat16" and bool(torch.cpu._is_avx512_bf16_supported())


def autocast_dtype(precision: Precision, device: torch.device) -> torch.dtype | None:
    """The dtype to autocast to, or None for float32.

    Hardware that lacks it gets another, with a warning: a CPU float32, a GPU without bfloat16 (before Ampere) float16.
    """
    if precision == "float32":
        return None
    if device.type == "cpu" and not cpu_supports(precision):
        warnings.warn(
            f"this CPU has no {precision} arithmetic and would be many times slower with it: training in float32",
            UserWarning,
            stacklevel=2,
        )
        return None
    if (
        precision == "bfloat16"
        and device.type == "cuda"
        and not torch.cuda.is_bf16_supported(including_emulation=False)
    ):
        warnings.warn("this GPU has no bfloat16 arithmetic: training in float16", UserWarning, stacklevel=2)
        return torch.float16
    return torch.bfloat16 if precision == "bfloat16" else torch.float16


@contextmanager
def gpu_arithmetic(*, tf32: bool, cudnn_benchmark: bool) -> Iterator[None]:
    """torch's switches as a run wants them, and afterwards as they were; with `tf32` they stay where the user put them.

    torch's own setting is TF32 for convolutions, which are nearly all of a ResNet, and float32 for other products.
    """
    cudnn = torch.backends.cudnn
    with ExitStack() as undo:
        undo.callback(setattr, cudnn, "benchmark", cudnn.benchmark)
        cudnn.benchmark = cudnn_benchmark
        if not tf32:
            _forbid_tf32(undo)
        yield


def _forbid_tf32(undo: ExitStack) -> None:
    """By both of torch's APIs: the older cannot be read where only the other was used, and torch.compile reads both."""
    cudnn: Any = torch.backends.cudnn  # torch's stubs lack its parts
    mkldnn: Any = torch.backends.mkldnn
    matmul, present = torch.backends.cuda.matmul, list[Any]()
    if hasattr(matmul, "fp32_precision"):  # since torch 2.9
        present = [matmul, cudnn.conv, cudnn.rnn, cudnn]
        # Undone in reverse and last; mkldnn's because set_float32_matmul_precision changes it, too.
        for place in (mkldnn.matmul, *present):
            undo.callback(setattr, place, "fp32_precision", place.fp32_precision)
    with suppress(RuntimeError):  # the user has taken the present API
        undo.callback(setattr, cudnn, "allow_tf32", cudnn.allow_tf32)
        cudnn.allow_tf32 = False
    with suppress(RuntimeError):
        undo.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        matmul.allow_tf32 = False
    for place in reversed(present):
        place.fp32_precision = "ieee"
