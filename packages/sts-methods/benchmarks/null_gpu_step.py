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
import copy
import json
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from speed_page import machine, write_table

from tests.null_gpu.machine import environment

WORLD_SIZE, BATCH, SIZE = 8, 32, 224
WARM_UP, STEPS = 12, 40
WHO = {"ours": "ours", "lightly": "lightly's blocks", "reference": "reference-style loop"}


def networks() -> dict[str, Callable[[], Any]]:
    """The networks of the others by method and author, each with `update_teacher()` and `report(loss)`."""
    import timm
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from lightly.loss import NTXentLoss
    from lightly.models.utils import batch_shuffle_distributed, batch_unshuffle_distributed
    from step import CASES, LightlyByol, LightlyMoCo
    from torch import Tensor, nn

    class ManyMoCo(LightlyMoCo):
        """As in lightly's tutorial for several GPUs."""

        def __init__(self) -> None:
            super().__init__(CASES["resnet50"])
            self.criterion = NTXentLoss(temperature=0.2, memory_bank_size=(65_536, 128), gather_distributed=True)

        def forward(self, one: Tensor, two: Tensor) -> Tensor:
            query = self.projection_head(self.backbone(one))
            with torch.no_grad():
                shuffled, order = batch_shuffle_distributed(two)
                key = batch_unshuffle_distributed(
                    self.projection_head_momentum(self.backbone_momentum(shuffled)), order
                )
            loss: Tensor = self.criterion(query, key)
            return loss

    def move_(teacher: nn.Module, student: nn.Module) -> None:
        with torch.no_grad():
            for old, new in zip(teacher.parameters(), student.parameters(), strict=True):
                old.data = 0.99 * old.data + 0.01 * new.data

    class ReferenceByol(LightlyByol):
        def update_teacher(self) -> None:
            move_(self.backbone_momentum, self.backbone)
            move_(self.projection_head_momentum, self.projection_head)

        def report(self, loss: Tensor) -> None:
            loss.item()

    class ReferenceMoCo(nn.Module):
        """Images and keys of all ranks are gathered, shuffled by rank 0's order; logits against the whole queue."""

        def __init__(self) -> None:
            super().__init__()
            self.student = timm.create_model("resnet50", num_classes=128)
            width = self.student.num_features
            self.student.fc = nn.Sequential(nn.Linear(width, width), nn.ReLU(), self.student.fc)
            self.teacher = copy.deepcopy(self.student).requires_grad_(False)
            self.register_buffer("queue", F.normalize(torch.randn(128, 65_536), dim=0))
            self.register_buffer("position", torch.zeros(1, dtype=torch.long))

        def forward(self, one: Tensor, two: Tensor) -> Tensor:
            queries = F.normalize(self.student(one), dim=1)
            with torch.no_grad():
                move_(self.teacher, self.student)
                images = gathered(two)
                order = torch.randperm(len(images)).cuda()
                dist.broadcast(order, src=0)
                back = order.argsort().view(WORLD_SIZE, -1)[0]
                keys = F.normalize(self.teacher(images[order.view(WORLD_SIZE, -1)[0]]), dim=1)
                keys = gathered(keys)[back]
            positive = (queries * keys).sum(dim=1, keepdim=True)
            self.logits = torch.cat([positive, queries @ self.queue.clone()], dim=1) / 0.2
            self.labels = torch.zeros(len(self.logits), dtype=torch.long).cuda()
            self.enqueue(keys)
            return F.cross_entropy(self.logits, self.labels)

        @torch.no_grad()
        def enqueue(self, keys: Tensor) -> None:
            keys, first = gathered(keys), int(self.position)
            self.queue[:, first : first + len(keys)] = keys.T
            self.position[0] = (first + len(keys)) % self.queue.shape[1]

        def update_teacher(self) -> None:
            """Moved in the next forward pass."""

        @torch.no_grad()
        def report(self, loss: Tensor) -> None:
            hits = self.logits.topk(5, dim=1).indices == self.labels[:, None]
            for value in (loss, hits[:, 0].float().mean(), hits.any(dim=1).float().mean()):
                value.item()

    def gathered(local: Tensor) -> Tensor:
        parts = [torch.empty_like(local) for _ in range(WORLD_SIZE)]
        dist.all_gather(parts, local)
        return torch.cat(parts)

    return {
        "byol lightly": lambda: LightlyByol(CASES["resnet50"]),
        "byol reference": lambda: ReferenceByol(CASES["resnet50"]),
        "moco lightly": ManyMoCo,
        "moco reference": ReferenceMoCo,
    }


def count_theirs(method: str, author: str) -> list[dict[str, Any]]:
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from tests.null_gpu.counters import answer, counted
    from tests.null_gpu.ranks import rank_zero_of

    steps: dict[str, dict[str, Any]] = {}
    with rank_zero_of(WORLD_SIZE):
        model = networks()[f"{method} {author}"]().cuda()
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
    """Counts of the step that asks for least (every tenth of MoCo's shares statistics), and the least of host times."""
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
