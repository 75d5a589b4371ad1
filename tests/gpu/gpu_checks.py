"""What `ci/gpu-check` runs, once, on a machine with GPUs: the numbers recorded here are in its report."""

import contextlib
import gc
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sts_core import Smoother, make_teacher, spatial_temporal_smoothing, temporal_moving_average
from sts_methods import DataConfig, LocalRuntime, MetricsLog, build_backbone, fit, recipes
from sts_pipelines.catalog import CATALOG
from sts_pipelines.diagnostics.dry_run import check_pipeline
from tests import processes
from tests.methods.training.tiny_training import CrashError, CrashingRuntime
from tests.null_gpu.methods import METHODS
from tests.null_gpu.run_budget import write_photos
from tests.null_gpu.training import runtime, training_config

Record = Callable[[str, object], None]
GPU = torch.device("cuda", 0)
IMAGES = 32
"""Of 224 px on each GPU, as in the recipes for 8 GPUs."""


@pytest.fixture(autouse=True)
def exact_and_pretended() -> Iterator[None]:
    """No TF32 and no choice among algorithms, so that the CPU is a reference; what a null GPU needs, on one."""
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = False, True
    with contextlib.ExitStack() as stack:
        if "NULLGPU_LIBRARY" in os.environ:
            from tests.null_gpu.training import counted_steps

            stack.enter_context(counted_steps())
        yield
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = True, False


def test_the_machine_has_what_torch_was_built_for(record_property: Record) -> None:
    versions = {"torch": torch.__version__, "CUDA": torch.version.cuda, "cuDNN": torch.backends.cudnn.version()}
    record_property("versions", versions | {"NCCL": torch.cuda.nccl.version(), "driver": _driver()})
    for number in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(number)
        peers = [other for other in range(torch.cuda.device_count()) if _peers(number, other)]
        facts = f"sm_{gpu.major}{gpu.minor}, {gpu.total_memory / 2**30:.1f} GiB, peers {peers}"
        record_property(f"GPU {number}", f"{gpu.name}, {facts}, bfloat16 {torch.cuda.is_bf16_supported(False)}")
        oldest = min(int(name.partition("_")[2].rstrip("af")) for name in torch.cuda.get_arch_list())
        assert 10 * gpu.major + gpu.minor >= oldest


@pytest.mark.computes
def test_triton_updates_teachers_on_the_gpu() -> None:
    from sts_core.kernels import triton

    assert triton._problem("cuda:0") == ""


def losses(folder: Path, method: str, device: str, **changes: Any) -> list[float]:
    """Of three steps on digits."""
    config = training_config(method, world_size=1, steps=3, **{"log_every_steps": 1, **changes})
    fit(config, LocalRuntime(folder, device=device, progress=False))
    return [float(entry["loss"]) for entry in MetricsLog(folder / "metrics.jsonl").read()]


@pytest.mark.parametrize("method", METHODS)
def test_steps_in_every_precision(method: str, tmp_path: Path, record_property: Record) -> None:
    """Held to those of the CPU in float32 by `test_steps_are_those_of_the_cpu`."""
    for precision in ("float32", "bfloat16", "float16"):
        found = losses(tmp_path / precision, method, "cuda:0", precision=precision)
        record_property(f"{method} {precision}, losses", found)
        assert len(found) == 3


@pytest.mark.computes
@pytest.mark.parametrize("method", METHODS)
def test_steps_are_those_of_the_cpu(method: str, tmp_path: Path, record_property: Record) -> None:
    expected = losses(tmp_path / "cpu", method, "cpu")
    record_property(f"{method} on the CPU, losses", expected)
    bounds = {"float32": 0.01, "bfloat16": 0.1, "float16": 0.1}
    for precision, bound in bounds.items():
        found = losses(tmp_path / precision, method, "cuda:0", precision=precision)
        assert found == pytest.approx(expected, rel=bound), precision


@pytest.mark.computes
@pytest.mark.parametrize("method", METHODS)
def test_a_resumed_run_is_bit_for_bit_one_that_went_through(method: str, tmp_path: Path) -> None:
    config = training_config(method, world_size=1, steps=6, checkpoint_every_steps=1)
    through = fit(config, runtime(tmp_path / "through")).method.state_dict()
    with contextlib.suppress(CrashError):
        fit(config, CrashingRuntime(tmp_path / "killed", crash_at=4))
    resumed = fit(config, runtime(tmp_path / "killed")).method.state_dict()
    assert [name for name in through if not torch.equal(through[name], resumed[name])] == []


def test_all_gpus_train_together(tmp_path: Path, record_property: Record) -> None:
    """BYOL by NCCL; `fit` compares the weights of all ranks at its end."""
    num = torch.cuda.device_count()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num}"]
    done = processes.run([*torchrun, "-m", "tests.gpu.run_ranks", tmp_path])
    assert done.returncode == 0, done.stderr[-6000:]
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(num)]
    for rank in ranks:
        record_property(f"rank {rank['rank']} of {num}", rank)
        assert (rank["step"], rank["device"]) == (4, f"cuda:{rank['rank']}")


def test_a_step_of_the_recipe_needs_the_memory_that_is_estimated(tmp_path: Path, record_property: Record) -> None:
    """BYOL on ResNet-50, one GPU's part of the recipe for 8."""
    pipeline = CATALOG["byol-imagenet-200ep-sts"].build()
    alone = {"global_batch_size": IMAGES, "epochs": None, "steps": 12, "log_every_steps": 4}
    data = DataConfig(dataset="images", root=str(write_photos(tmp_path / "photos")), views="byol", num_workers=0)
    rarely = {"checkpoint_every_steps": None, "checkpoint_every_minutes": None, "data": data}
    training = replace(recipes.byol_imagenet(), **alone, **rarely)
    gc.collect()  # what earlier checks held
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = fit(training, runtime(tmp_path / "run"))
    peak = (torch.cuda.max_memory_allocated() - before) / 2**30
    evaluation = replace(pipeline.evaluation, after_training=())
    cluster = replace(pipeline.cluster, num_workers=1)
    pipeline = replace(pipeline, training=training, cluster=cluster, evaluation=evaluation)
    said = re.search(r"estimated: ([\d.]+) GiB", check_pipeline(pipeline, placement=False))
    assert said is not None
    record_property("memory, peak and estimate", f"{peak:.2f} GiB, {said[1]} GiB")
    record_property("images/s of the recipe on one GPU, float32 without TF32", result.metrics["images_per_second"])
    assert peak < 1.1 * float(said[1])


@pytest.mark.computes
def test_the_update_keeps_the_memory_busy(record_property: Record) -> None:
    student = build_backbone("resnet50").to(GPU)
    weights = sum(parameter.numel() for parameter in student.parameters())
    configs = {"moving average": temporal_moving_average(0.99)}
    for granularity in ("layer", "channel", "neuron"):
        configs[granularity] = spatial_temporal_smoothing(0.99, 0.7, granularity=granularity)
    for name, config in configs.items():
        smoother = Smoother(student=student, teacher=make_teacher(student), config=config, seed=0)
        milliseconds = _milliseconds(smoother.update)
        speed = 12 * weights / milliseconds / 1e6
        record_property(f"update, {name}", f"{milliseconds:.3f} ms, {speed:.0f} GB/s if all weights moved")
    plain = make_teacher(student)
    pairs = [list(network.parameters()) for network in (plain, student)]
    with torch.no_grad():
        lerp = _milliseconds(lambda: torch._foreach_lerp_(*pairs, 0.01))
    record_property("torch._foreach_lerp_ of all weights", f"{lerp:.3f} ms")
    assert lerp > 0


def _milliseconds(work: Callable[[], object], times: int = 50) -> float:
    for _ in range(5):
        work()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(times):
        work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / times


def _driver() -> str:
    file = Path("/proc/driver/nvidia/version")
    return file.read_text().splitlines()[0] if file.exists() else "unknown"


def _peers(one: int, other: int) -> bool:
    return one != other and torch.cuda.can_device_access_peer(one, other)
