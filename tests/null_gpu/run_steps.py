"""python -m tests.null_gpu.run_steps METHOD ...: steps on null GPUs, in each precision, alone and as rank 0 of 8.

Prints by method and case the counts of the third step, which neither logs nor saves; then what a run with everything
left behind.
"""

import contextlib
import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any, get_args

from sts_core import Granularity, Precision, SmoothingConfig, spatial_ensemble
from sts_core.distributed import checksum
from sts_methods import CheckpointStore, MetricsLog, fit, read_checkpoint
from tests.methods.training.tiny_training import CrashError, CrashingRuntime
from tests.null_gpu.ranks import rank_zero_of
from tests.null_gpu.training import counted_steps, runtime, training_config


def counts(method: str, world_size: int, precision: Precision, **changes: Any) -> dict[str, Any]:
    """The phases of the third of four steps."""
    config = training_config(method, world_size=world_size, precision=precision, **changes)
    with tempfile.TemporaryDirectory() as folder, rank_zero_of(world_size), counted_steps() as steps:
        fit(config, runtime(Path(folder)))
    return steps[2]


def everything(method: str, world_size: int) -> dict[str, Any]:
    """A run with a bank and drift that verifies, logs and saves at every step, and dies once."""
    often = {"checkpoint_every_steps": 1, "verify_ranks_every_steps": 1, "log_every_steps": 1, "keep_checkpoints": 9}
    bank = {name: spatial_ensemble(0.5, buffers="copy") for name in ("first", "second")}
    config = training_config(
        method, world_size=world_size, track_drift=True, bank=bank, global_batch_size=256, steps=8, **often
    )
    with tempfile.TemporaryDirectory() as name, rank_zero_of(world_size), counted_steps():
        folder = Path(name)
        with contextlib.suppress(CrashError):
            fit(config, CrashingRuntime(folder, crash_at=5))
        first = CheckpointStore(folder / "checkpoints").newest_intact()
        result = fit(config, runtime(folder))
        saved = read_checkpoint(folder / "checkpoints" / "step-00000008")
        live = result.method.state_dict()
        return {
            "resumed_at": first,
            "step": result.step,
            "drift": sorted(
                {key for entry in MetricsLog(folder / "metrics.jsonl").read() for key in entry if "drift" in key}
            ),
            "devices": sorted({str(tensor.device) for tensor in live.values()}),
            "unequal": [key for key, tensor in live.items() if checksum(tensor) != checksum(saved["method"][key])],
            "files": sorted(str(path.relative_to(folder)) for path in folder.glob("**/*.safetensors")),
        }


def smoothing(number: int) -> SmoothingConfig:
    """One of many that differ: each granularity with each p, 0 among them, and with momenta of all kinds."""
    granularity, p = get_args(Granularity)[number % 4], (0.0, 0.5, 0.98)[number % 3]
    momentum = (0.0, 0.3, 0.99)[number // 4 % 3]
    return SmoothingConfig(momentum=momentum, preserve_probability=p, granularity=granularity, buffers="copy")


def tried(method: str) -> dict[str, Any]:
    steps = {
        f"{world_size} {precision}": counts(method, world_size, precision)
        for world_size in (1, 8)
        for precision in get_args(Precision)
    }
    whole = {str(world_size): everything(method, world_size) for world_size in (1, 8)}
    bank = {f"teacher-{number}": smoothing(number) for number in range(32)}
    banked = {str(world_size): counts(method, world_size, "float32", bank=bank) for world_size in (1, 8)}
    return {"steps": steps, "everything": whole, "bank": banked}


def main() -> None:
    warnings.simplefilter("ignore")
    print(json.dumps({method: tried(method) for method in sys.argv[1:]}))


if __name__ == "__main__":
    main()
