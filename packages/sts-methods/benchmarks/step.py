"""One training step of BYOL and MoCo: ours against lightly's building blocks wired the same way, in one run.

    ci/bench step                  all steps and options, one table of this one run into docs/speed.md
    ci/bench step --dry            print it and leave the page alone
    ci/bench step --quick          lightly and ours only, printed; --only and --batch-size are for a look, too

Same backbone, weights, images, learning rate and thread count; lightly's network is built from its heads, its loss, its
memory bank and its momentum update, as in its tutorials, and trained by torch's SGD as it comes; a second row has it in
the memory layout that ours prefers. Steps of all variants take turns, and CPU time is compared: only ratios within one
run mean anything. The losses of both sides are compared first, so that equal work is timed. torch.compile needs a C++
compiler and minutes to warm up, which do not count.
"""

import argparse
import copy
import dataclasses
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from lightly.loss import NegativeCosineSimilarity, NTXentLoss
from lightly.models.modules import BYOLPredictionHead, BYOLProjectionHead, MoCoProjectionHead
from lightly.models.utils import batch_shuffle, batch_unshuffle, deactivate_requires_grad, update_momentum
from speed_page import machine, write_table
from torch import Tensor, nn

from sts_core import temporal_moving_average
from sts_methods.batch import Batch
from sts_methods.data.config import DataConfig
from sts_methods.methods.byol import ByolConfig
from sts_methods.methods.moco import MoCoConfig
from sts_methods.methods.registry import build_method
from sts_methods.networks.backbones import build_backbone
from sts_methods.networks.heads import initialised_from
from sts_methods.runs.runtime import LocalRuntime
from sts_methods.training.config import TrainingConfig
from sts_methods.training.learner import Learner
from sts_methods.training.optimizers import OptimizerConfig
from sts_methods.training.precision import cpu_supports

LR, MOMENTUM, WEIGHT_DECAY, TEACHER_MOMENTUM = 0.05, 0.9, 1e-4, 0.99
Step = Callable[[], float]


@dataclass(frozen=True)
class Case:
    """A network, an image size and a batch."""

    backbone: str
    stem: Literal["imagenet", "cifar"]
    image_size: int
    batch_size: int
    queue_size: int

    @property
    def title(self) -> str:
        return f"{self.backbone}, {self.image_size} px, batch {self.batch_size}"


CASES = {
    "resnet18": Case("resnet18", "cifar", 32, 128, 4096),
    "resnet50": Case("resnet50", "imagenet", 224, 8, 65_536),
}


class LightlyByol(nn.Module):
    """As in lightly's BYOL tutorial; the two terms are scaled to the paper's 2 - 2cos."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.backbone = build_backbone(case.backbone, stem=case.stem)
        self.projection_head = BYOLProjectionHead(int(self.backbone.num_features), 4096, 256)  # type: ignore[arg-type]
        self.prediction_head = BYOLPredictionHead(256, 4096, 256)
        self.backbone_momentum = copy.deepcopy(self.backbone)
        self.projection_head_momentum = copy.deepcopy(self.projection_head)
        deactivate_requires_grad(self.backbone_momentum)
        deactivate_requires_grad(self.projection_head_momentum)
        self.criterion = NegativeCosineSimilarity()

    def update_teacher(self) -> None:
        update_momentum(self.backbone, self.backbone_momentum, m=TEACHER_MOMENTUM)
        update_momentum(self.projection_head, self.projection_head_momentum, m=TEACHER_MOMENTUM)

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        p0, p1 = (self.prediction_head(self.projection_head(self.backbone(x))) for x in (one, two))
        with torch.no_grad():
            z0, z1 = (self.projection_head_momentum(self.backbone_momentum(x)) for x in (one, two))
        loss: Tensor = 4.0 + 2.0 * (self.criterion(p0, z1) + self.criterion(p1, z0))
        return loss


class LightlyMoCo(nn.Module):
    """As in lightly's MoCo tutorial, with shuffled keys; one process, so one batch norm group."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.backbone = build_backbone(case.backbone, stem=case.stem)
        width = int(self.backbone.num_features)  # type: ignore[arg-type]
        self.projection_head = MoCoProjectionHead(width, width, 128)
        self.backbone_momentum = copy.deepcopy(self.backbone)
        self.projection_head_momentum = copy.deepcopy(self.projection_head)
        deactivate_requires_grad(self.backbone_momentum)
        deactivate_requires_grad(self.projection_head_momentum)
        self.criterion = NTXentLoss(temperature=0.2, memory_bank_size=(case.queue_size, 128))

    def update_teacher(self) -> None:
        update_momentum(self.backbone, self.backbone_momentum, m=TEACHER_MOMENTUM)
        update_momentum(self.projection_head, self.projection_head_momentum, m=TEACHER_MOMENTUM)

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        query = self.projection_head(self.backbone(one))
        with torch.no_grad():
            shuffled, order = batch_shuffle(two)
            key = self.projection_head_momentum(self.backbone_momentum(shuffled))
            key = batch_unshuffle(key, order)
        loss: Tensor = self.criterion(query, key)
        return loss


def lightly_step(
    case: Case, method: str, images: tuple[Tensor, Tensor], layout: torch.memory_format
) -> tuple[nn.Module, Step]:
    with initialised_from(0):
        model = LightlyByol(case) if method == "byol" else LightlyMoCo(case)
    model.to(memory_format=layout)  # type: ignore[call-overload]
    images = (images[0].contiguous(memory_format=layout), images[1].contiguous(memory_format=layout))
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)

    def step() -> float:
        loss = model(*images)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.update_teacher()
        return float(loss.detach())

    return model, step


def our_step(case: Case, method: str, images: tuple[Tensor, Tensor], reference: nn.Module, **options: Any) -> Step:
    """A step of `fit` as it is, from the weights of `reference`."""
    networks = {"backbone": case.backbone, "stem": case.stem}
    if method == "byol":
        concatenate = options.pop("concatenate_views", False)
        config: Any = ByolConfig(concatenate_views=concatenate, **networks)  # type: ignore[arg-type]
    else:
        config = MoCoConfig(queue_size=case.queue_size, bn_groups=1, **networks)  # type: ignore[arg-type]
    training = TrainingConfig(
        method=config,
        smoothing=temporal_moving_average(TEACHER_MOMENTUM, buffers="keep"),
        data=DataConfig(views=method, image_size=case.image_size),
        optimizer=OptimizerConfig(
            lr=LR, scale_lr=False, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, schedule="constant"
        ),
        global_batch_size=case.batch_size,
        steps=1_000_000,
        **options,
    )
    ours = build_method(config, seed=0)
    load_from_lightly(ours, reference)
    runtime = LocalRuntime(tempfile.gettempdir(), device="cpu", progress=False)
    learner = Learner(training, ours, runtime, total_steps=1_000_000, steps_per_epoch=1_000)
    numbers = iter(range(1_000_000))

    def step() -> float:
        number = next(numbers)
        batch = Batch(views=images, indices=torch.arange(case.batch_size), step=number)
        metrics = learner.accumulate_gradients([batch])
        learner.update_student(number)
        learner.update_teacher(number)
        return float(metrics["loss"])

    return step


def load_from_lightly(ours: Any, reference: Any) -> None:
    """Give our networks lightly's weights. Its hidden linear layers have no bias before a norm; ours get zeros."""
    parts = [
        (ours.student.backbone, reference.backbone),
        (ours.student.head, reference.projection_head.layers),
        (ours.teacher.backbone, reference.backbone_momentum),
        (ours.teacher.head, reference.projection_head_momentum.layers),
    ]
    if hasattr(reference, "prediction_head"):
        parts.append((ours.student.predictor, reference.prediction_head.layers))
    for target, source in parts:
        state = source.state_dict()
        missing = set(target.state_dict()) - set(state)
        assert all(name.endswith("bias") or "num_batches" in name for name in missing), missing
        state |= {name: torch.zeros_like(target.state_dict()[name]) for name in missing}
        target.load_state_dict(state)
    if hasattr(ours, "queue"):
        ours.queue.copy_(reference.criterion.memory_bank.bank)


def variants(method: str, *, quick: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "ours", {}
    if quick:
        return
    yield "ours, without channels_last", {"channels_last": False}
    if method == "byol":
        yield "ours, views concatenated (other batch norm statistics)", {"concatenate_views": True}
    if cpu_supports("bfloat16"):
        yield "ours, bfloat16 autocast", {"precision": "bfloat16"}
    if shutil.which("c++"):
        yield "ours, torch.compile", {"compile": True}


def measure(steps: dict[str, Step], rounds: int) -> dict[str, list[float]]:
    """CPU seconds of each variant, taking turns after a warm-up step each."""
    for step in steps.values():
        step()
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds):
        names = list(steps) if number % 2 == 0 else list(reversed(steps))
        for name in names:
            start = time.process_time()
            steps[name]()
            seconds[name].append(time.process_time() - start)
    return seconds


def compare(case: Case, method: str, *, rounds: int, quick: bool) -> list[str]:
    generator = torch.Generator().manual_seed(0)
    shape = (case.batch_size, 3, case.image_size, case.image_size)
    images = (torch.randn(shape, generator=generator), torch.randn(shape, generator=generator))
    reference, theirs = lightly_step(case, method, images, torch.contiguous_format)
    steps: dict[str, Step] = {"lightly": theirs}
    if not quick:
        steps["lightly, channels_last"] = lightly_step(case, method, images, torch.channels_last)[1]
    for name, options in variants(method, quick=quick):
        steps[name] = our_step(case, method, images, reference, **options)
    first = {name: step() for name, step in steps.items() if name in ("lightly", "ours")}
    assert abs(first["ours"] - first["lightly"]) < 1e-3 * abs(first["lightly"]), f"the losses differ: {first}"
    seconds = measure(steps, rounds)
    least, middle = min(seconds["lightly"]), statistics.median(seconds["lightly"])
    return [
        f"| {method}, {case.title} | {name} | {least / min(values):.2f} | {middle / statistics.median(values):.2f} | "
        f"{1000 * min(values):,.0f} |"
        for name, values in seconds.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8, help="timed steps of each variant")
    parser.add_argument("--batch-size", type=int, help="another batch size, for a quick look")
    parser.add_argument("--only", choices=[f"{m}-{c}" for m in ("byol", "moco") for c in CASES], action="append")
    parser.add_argument("--quick", action="store_true", help="lightly and ours only, none of the options")
    parser.add_argument("--dry", action="store_true", help="print the table and leave the page alone")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table = [
        f"One run of {arguments.rounds} rounds on one core ({machine()}).",
        "",
        "| step | variant | speed (min) | speed (median) | CPU ms (min) |",
        "|---|---|---:|---:|---:|",
    ]
    print(*table, sep="\n", flush=True)
    for key, case in CASES.items():
        if arguments.batch_size:
            case = dataclasses.replace(case, batch_size=arguments.batch_size)
        for method in ("byol", "moco"):
            if arguments.only and f"{method}-{key}" not in arguments.only:
                continue
            rows = compare(case, method, rounds=arguments.rounds, quick=arguments.quick)
            print(*rows, sep="\n", flush=True)
            table += rows
    whole = not (arguments.only or arguments.quick or arguments.batch_size)
    if whole and not arguments.dry:
        write_table("step", table)


if __name__ == "__main__":
    main()
