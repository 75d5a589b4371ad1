"""A step of every method in reduced precision, and of compiled networks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

from sts_methods import LocalRuntime
from sts_methods.training.learner import Learner
from sts_methods.training.precision import gpu_arithmetic
from tests.methods.training import rank_cases as cases
from tests.methods.training import tiny_training as tiny


def take_step(learner: Learner, name: str) -> float:
    """One whole step; its loss."""
    loss = learner.accumulate_gradients(cases.micro_batches(name))["loss"]
    learner.update_student(0)
    learner.update_teacher(0)
    return float(loss)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", cases.METHODS)
def test_a_step_in_reduced_precision_has_nearly_the_loss_of_float32_and_keeps_float32_weights(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = take_step(cases.learner_of(name), name)
    monkeypatch.setattr("sts_methods.training.learner.autocast_dtype", lambda precision, device: dtype)
    reduced = cases.learner_of(name)
    loss = take_step(reduced, name)
    assert loss == pytest.approx(expected, rel=0.05)
    assert loss != expected
    tensors = reduced.method.state_dict().values()
    assert {tensor.dtype for tensor in tensors} == {torch.float32, torch.int64}
    assert all(tensor.isfinite().all() for tensor in tensors)


def switches() -> tuple[bool, bool, bool]:
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    return cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (False, True, False)),  # torch's own
        ({"tf32": False}, (False, False, False)),
        ({"cudnn_benchmark": True}, (True, True, False)),
    ],
)
def test_a_run_says_what_float32_means_to_a_gpu_and_leaves_no_trace(
    changes: dict[str, bool], expected: tuple[bool, bool, bool], tmp_path: Path
) -> None:
    before, seen = switches(), list[tuple[bool, bool, bool]]()
    runtime = LocalRuntime(tmp_path, progress=False, on_step=lambda step: seen.append(switches()))
    tiny.tiny_fit(tiny.tiny_config(steps=1, **changes), runtime)
    assert (seen, switches()) == ([expected], before)


def precisions() -> list[str]:
    """What torch says of float32 by both of its APIs; the older refuses to tell where only the present one was used."""
    b: Any = torch.backends
    found = [b.cuda.matmul.fp32_precision, b.cudnn.conv.fp32_precision, b.cudnn.rnn.fp32_precision]
    found += [place.fp32_precision for place in (b.cudnn, b, b.mkldnn, b.mkldnn.matmul, b.mkldnn.conv)]
    older = (lambda: b.cudnn.allow_tf32, lambda: b.cuda.matmul.allow_tf32, torch.get_float32_matmul_precision)
    for read in older:
        try:
            found.append(str(read()))
        except RuntimeError:
            found.append("refused")
    return found


@pytest.fixture
def torchs_own() -> Iterator[None]:
    """Whatever a test sets, torch is as it starts afterwards."""
    b, before = cast(Any, torch.backends), precisions()
    yield
    torch.set_float32_matmul_precision("highest")
    b.cudnn.allow_tf32 = True
    for place in (b, b.cudnn, b.mkldnn, b.cuda.matmul, b.mkldnn.matmul, b.mkldnn.conv):
        place.fp32_precision = "none"
    b.cudnn.conv.fp32_precision = b.cudnn.rnn.fp32_precision = "tf32"
    assert precisions() == before


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch < 2.9 has the older API")
@pytest.mark.parametrize(
    "setting",
    [
        "b.cuda.matmul.fp32_precision = 'tf32'",
        "b.cudnn.conv.fp32_precision = 'ieee'",
        "b.cudnn.fp32_precision = 'tf32'",
        "b.fp32_precision = 'tf32'",
        "b.cuda.matmul.allow_tf32 = True",
        "torch.set_float32_matmul_precision('medium')",
        "torch.set_float32_matmul_precision('highest')",
    ],
)
@pytest.mark.usefixtures("torchs_own")
def test_a_run_has_no_tf32_and_leaves_no_trace_whichever_api_the_user_took(setting: str) -> None:
    exec(setting, {"torch": torch, "b": torch.backends})
    before = precisions()
    with gpu_arithmetic(tf32=True, cudnn_benchmark=False):
        assert precisions() == before
    with gpu_arithmetic(tf32=False, cudnn_benchmark=False):
        assert precisions()[:4] == ["ieee"] * 4
        assert not torch.backends.cuda.matmul.allow_tf32  # torch.compile asks the older API, too
    assert precisions() == before


@pytest.mark.slow
@pytest.mark.parametrize("name", ["byol", "moco_2_groups"])
def test_a_step_of_compiled_networks_is_that_of_plain_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def trace_only(module: nn.Module) -> None:
        """torch.compile without its code generator, which takes minutes."""
        module._compiled_call_impl = torch.compile(module._call_impl, backend="eager")

    monkeypatch.setattr(nn.Module, "compile", trace_only)
    plain, traced = (cases.learner_of(name, compile=flag) for flag in (False, True))
    assert take_step(plain, name) == take_step(traced, name)
    tiny.assert_same_bits(plain.method.state_dict(), traced.method.state_dict())
