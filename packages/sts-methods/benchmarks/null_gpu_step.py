"""One training step of BYOL and MoCo as rank 0 of 8, counted on a null GPU: ours, lightly's blocks, a reference's loop.

    ci/bench step --null-gpu           one table of this run into docs/speed.md
    ci/bench step --null-gpu --dry     print it and leave the page alone

ResNet-50, 32 images of 224 px a GPU, float32, in every case from images on the device to the updated teacher. Ours is
the loop of `fit` with its guard and health metrics, in a step that does not log. The others do what their authors'
loops do in every step: lightly's as in its tutorials, the reference's with a teacher updated weight by weight and a
loss, and MoCo's accuracies, read in every step. All count from the thirteenth step on; operations are the same in each.
A null GPU computes nothing (tests/null_gpu/README.md): this says what is asked of a GPU, not how long it takes.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from speed_page import machine, write_table

from tests.null_gpu.machine import environment

WORLD_SIZE, BATCH, SIZE = 8, 32, 224
WARM_UP, STEPS = 12, 40
WHO = {"ours": "ours", "lightly": "lightly's blocks", "reference": "reference-style loop"}


def count_theirs(method: str, author: str) -> list[dict[str, Any]]:
    import torch
    from networks_of_others import NETWORKS
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from tests.null_gpu.counters import answer, counted
    from tests.null_gpu.ranks import rank_zero_of

    steps: dict[str, dict[str, Any]] = {}
    with rank_zero_of(WORLD_SIZE):
        model = NETWORKS[f"{method} {author}"]().cuda()
        model.register_forward_pre_hook(lambda *_: answer(WORLD_SIZE))  # ranks that have images, says SyncBatchNorm
        if method == "byol":
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        wrapped = DistributedDataParallel(model, device_ids=[0])
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.SGD(trained, lr=0.05, momentum=0.9, weight_decay=1e-4)
        one, two = (torch.randn(BATCH, 3, SIZE, SIZE, device="cuda") for _ in range(2))
        for number in range(STEPS):
            with counted(steps, str(number)):
                loss = wrapped(one, two)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                model.update_teacher()
                getattr(model, "report", lambda loss: None)(loss)
    return list(steps.values())[WARM_UP:]


def count_ours(method: str) -> list[dict[str, Any]]:
    from sts_methods import fit
    from tests.null_gpu.ranks import rank_zero_of
    from tests.null_gpu.run_budget import recipe, write_photos
    from tests.null_gpu.training import counted_steps, runtime

    class EnoughError(Exception):
        pass

    rarely = {"log_every_steps": 1000, "checkpoint_every_steps": None, "verify_ranks_every_steps": None}
    with (
        tempfile.TemporaryDirectory() as name,
        rank_zero_of(WORLD_SIZE),
        counted_steps(stop=(STEPS, EnoughError)) as steps,
        contextlib.suppress(EnoughError),
    ):
        config = recipe(method, write_photos(Path(name) / "photos"))
        fit(replace(config, epochs=None, steps=1000, **rarely), runtime(Path(name) / "run"))
    return [_whole(step) for step in steps[WARM_UP:]]


def _whole(step: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The sum of a step's phases from images on the device."""
    phases = [counts for phase, counts in step.items() if phase != "data"]
    names = ("operations", "syncs", "collectives", "collective_bytes", "host_ms")
    return {name: sum(counts[name] for counts in phases) for name in names}


def row(method: str, author: str, steps: list[dict[str, Any]]) -> str:
    """Counts of the step that asks for least (and for most, where they differ), and the least of host times."""
    least = min(steps, key=lambda step: step["operations"])
    most = max(steps, key=lambda step: step["operations"])
    both = [f"{step['operations']:,}" for step in (least, most)]
    operations = both[0] if both[0] == both[1] else f"{both[0]} ({both[1]})"
    times = [step["host_ms"] for step in steps]
    return (
        f"| {method} | {WHO[author]} | {operations} | {least['syncs']} | {least['collectives']} | "
        f"{least['collective_bytes'] / 1e6:.0f} | {min(times):.1f} | {statistics.median(times):.1f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--null-gpu", action="store_true", help="what brought you here")
    parser.add_argument("--dry", action="store_true", help="print the table and leave the page alone")
    parser.add_argument("--count", nargs=2, metavar=("METHOD", "AUTHOR"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.count:
        warnings.simplefilter("ignore")
        method, author = arguments.count
        print(json.dumps(count_ours(method) if author == "ours" else count_theirs(method, author)))
        return
    table = [
        f"Counted on a null GPU ({machine()}), {STEPS - WARM_UP} steps each; host times on a shared core.",
        "",
        "| step | by | operations | waits | collectives | MB sent | host ms (min) | host ms (median) |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    print(*table, sep="\n", flush=True)
    for method in ("byol", "moco"):
        for author in WHO:
            command = [sys.executable, __file__, "--count", method, author]
            done = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, text=True, check=True)
            table.append(row(method, author, json.loads(done.stdout.splitlines()[-1])))
            print(table[-1], flush=True)
    if not arguments.dry:
        write_table("null-gpu", table)


if __name__ == "__main__":
    main()
