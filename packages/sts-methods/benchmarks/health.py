"""What the health metrics cost: their share of the time of a whole training step, by the profiler, in runs of `fit`.

    ci/bench health                the table goes into docs/speed.md
    ci/bench health --dry          print it and leave the page alone

ResNet-18 (WRN-28-2 for FixMatch and Mean Teacher) on digits at 32 px. Batch 32 is small, so the shares are upper bounds
for the recipes' own batches: a step grows with the batch, the norm over all weights does not.
"""

import argparse
import cProfile
import pstats
import tempfile
from typing import Any

import torch
from speed_page import machine, write_table

from sts_core import spatial_temporal_smoothing
from sts_methods import DataConfig, LocalRuntime, TrainingConfig, fit, method_record
from sts_methods.methods.registry import METHODS

STEP = ("accumulate_gradients", "update_student", "update_teacher")
HEALTH = ("health_metrics", "relative_weight_distance")


def config_of(name: str, *, steps: int) -> TrainingConfig:
    semi_supervised = "num_classes" in METHODS[name].__dataclass_fields__
    options: dict[str, Any] = {"num_classes": 10} if semi_supervised else {"backbone": "resnet18", "stem": "cifar"}
    method = METHODS[name](**options)
    record = method_record(method)
    assert record is not None
    data = DataConfig(views=record.views, num_labels=40 if semi_supervised else None)
    smoothing = spatial_temporal_smoothing(0.99, 0.7, buffers="copy" if name == "fixmatch" else "keep")
    return TrainingConfig(method=method, smoothing=smoothing, data=data, global_batch_size=32, steps=steps)


def share_of_health(name: str, *, steps: int) -> tuple[float, float]:
    """Milliseconds of a step, and the per cent of it that goes into health metrics."""
    profile = cProfile.Profile()
    with tempfile.TemporaryDirectory() as folder:
        config, runtime = config_of(name, steps=steps), LocalRuntime(folder, device="cpu", progress=False)
        profile.runcall(fit, config, runtime)
    seconds: dict[str, float] = {}
    for (file, _, function), (_, _, _, cumulative, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        if "sts_methods" in file:
            seconds[function] = cumulative
    step = sum(seconds[function] for function in STEP)
    return 1000 * step / steps, 100 * sum(seconds.get(function, 0.0) for function in HEALTH) / step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6, help="profiled steps of each method")
    parser.add_argument("--dry", action="store_true", help="print the table and leave the page alone")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table = [f"One core ({machine()}).", "", "| method | ms of a step | health metrics, % of it |", "|---|---:|---:|"]
    print(*table, sep="\n", flush=True)
    for name in METHODS:
        milliseconds, share = share_of_health(name, steps=arguments.steps)
        table.append(f"| {name} | {milliseconds:,.0f} | {share:.2f} |")
        print(table[-1], flush=True)
    if not arguments.dry:
        write_table("health", table)


if __name__ == "__main__":
    main()
