"""What test_ranks.py compares between one process and two: run in-process, or as a script once for every rank.

python rank_cases.py <rank> <world size> <store file> <output file>
"""

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.modules import _functions

from sts_core import Smoother, spatial_temporal_smoothing
from sts_core.distributed import exchange_rows, rank, world_size
from sts_methods.batch import Batch
from sts_methods.data.config import DataConfig
from sts_methods.methods.byol import ByolConfig
from sts_methods.methods.dino import DinoConfig
from sts_methods.methods.fixmatch import FixMatchConfig
from sts_methods.methods.mean_teacher import MeanTeacherConfig
from sts_methods.methods.moco import MoCoConfig
from sts_methods.methods.moco_v3 import MoCoV3Config
from sts_methods.methods.registry import MethodConfig, build_method, method_record
from sts_methods.networks.batch_norm import CrossRankBatchNorm, each_apart
from sts_methods.networks.normalise import shared_as
from sts_methods.runs.runtime import LocalRuntime, distribute
from sts_methods.training.config import TrainingConfig
from sts_methods.training.learner import Learner
from tests.methods.training import synchronised_kernels

NUM_IMAGES = 8
SMALL = {"backbone": "wrn_10_1", "stem": "cifar"}
METHODS: dict[str, MethodConfig] = {
    "byol": ByolConfig(**SMALL, hidden_dim=16, projection_dim=8),  # type: ignore[arg-type]
    "byol_concatenated": ByolConfig(**SMALL, hidden_dim=16, projection_dim=8, concatenate_views=True),  # type: ignore[arg-type]
    "moco_2_groups": MoCoConfig(**SMALL, dim=8, queue_size=20, bn_groups=2),  # type: ignore[arg-type]
    "moco_4_groups": MoCoConfig(**SMALL, dim=8, queue_size=20, bn_groups=4),  # type: ignore[arg-type]
    "moco_unshuffled": MoCoConfig(**SMALL, dim=8, queue_size=20, bn_groups=2, shuffle=False),  # type: ignore[arg-type]
    "moco_v3": MoCoV3Config(**SMALL, hidden_dim=16, dim=8, temperature=0.5),  # type: ignore[arg-type]
    "fixmatch": FixMatchConfig(**SMALL, num_classes=3, threshold=0.4),  # type: ignore[arg-type]
    "fixmatch_teacher": FixMatchConfig(**SMALL, num_classes=3, threshold=0.4, pseudo_labels="teacher"),  # type: ignore[arg-type]
    "mean_teacher": MeanTeacherConfig(**SMALL, num_classes=3, ramp_up_steps=2),  # type: ignore[arg-type]
    "dino": DinoConfig(**SMALL, hidden_dim=16, bottleneck_dim=8, num_prototypes=12, freeze_prototypes_steps=1),  # type: ignore[arg-type]
}
ACCUMULATED = ("byol", "moco_4_groups")
NORM_INPUTS = {
    "images": (8, 5, 4, 3),
    "channels_last": (8, 5, 4, 3),
    "vectors": (8, 5),
    "uneven": (8, 5, 2, 2),
    "offset": (8, 5, 4, 3),
    "bfloat16": (8, 5, 4, 3),
    "float64": (8, 5, 4, 3),
    "apart": (8, 2, 5, 4, 3),
    "as_on_a_gpu": (8, 5, 4, 3),
    "as_on_a_gpu_channels_last": (8, 5, 4, 3),
    "as_on_a_gpu_apart": (8, 2, 5, 4, 3),
    "as_on_a_gpu_uneven": (8, 5, 2, 2),
    "by_torch_on_a_gpu": (8, 5, 4, 3),
}
UNEVEN = ("byol", "fixmatch", "mean_teacher", "dino")
"""Methods whose batches two ranks share as 3 to 1."""


def share(tensor: Tensor, *, first: int | None = None) -> Tensor:
    """This rank's contiguous part of a global batch: an equal one, or `first` samples for rank 0 of two."""
    if first is None or world_size() == 1:
        return tensor.chunk(world_size())[rank()]
    return tensor[:first] if rank() == 0 else tensor[first:]


class _AsOnAGpu(CrossRankBatchNorm):
    """Takes the path of GPUs, whose kernels `synchronised_kernels` has for CPUs."""

    def forward(self, x: Tensor) -> Tensor:
        return self._native(x) if world_size() > 1 else super().forward(x)


class _ByTorch(CrossRankBatchNorm):
    """The same kernels as torch uses them."""

    def forward(self, x: Tensor) -> Tensor:
        if world_size() == 1:
            return super().forward(x)
        momentum = self._next_momenta(1)[0]
        return _functions.SyncBatchNorm.apply(  # type: ignore[no-any-return]
            x,
            self.weight,
            self.bias,
            self.running_mean,
            self.running_var,
            self.eps,
            momentum,
            dist.group.WORLD,
            world_size(),
        )


def normalise(kind: str) -> dict[str, Tensor]:
    """Outputs, gradients and buffers of a cross-rank batch norm on this rank's part of one global batch."""
    draw = torch.Generator().manual_seed(5)
    x, dy = (torch.randn(NORM_INPUTS[kind], generator=draw) for _ in range(2))
    x = x + 30.0 if kind == "offset" else x
    if kind.endswith("channels_last"):
        x, dy = (tensor.to(memory_format=torch.channels_last) for tensor in (x, dy))
    if kind == "bfloat16":
        x, dy = x.bfloat16(), dy.bfloat16()
    if kind == "float64":
        x, dy = x.double(), dy.double()
    norm = _ByTorch if kind.startswith("by_torch") else _AsOnAGpu if kind.startswith("as_on") else CrossRankBatchNorm
    layer = norm(5).to(torch.float64 if kind == "float64" else torch.float32)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(5, generator=draw))
        layer.bias.copy_(torch.randn(5, generator=draw))
    first = 5 if kind.endswith("uneven") else None
    local = share(x, first=first).clone(memory_format=torch.preserve_format).requires_grad_()
    if kind.endswith("apart"):  # two batches that are not alike, [N, 2, ...] here
        y = torch.stack(each_apart(layer, (local[:, 0], 2.0 * local[:, 1] + 1.0)), dim=1)
    else:
        with shared_as(None if first is None else (first, len(x) - first)):
            y = layer(local)
    y.backward(share(dy, first=first))
    assert local.grad is not None
    result = {"y": y.detach(), "dx": local.grad, "dweight": layer.weight.grad, "dbias": layer.bias.grad}
    return {**result, **dict(layer.named_buffers())}


def global_batch(step: int) -> Batch:
    draw = torch.Generator().manual_seed(100 + step)
    views = tuple(torch.randn(NUM_IMAGES, 3, size, size, generator=draw) for size in (8, 8, 6))
    labels = torch.randint(0, 3, (4,), generator=draw)
    labelled, teachers = (torch.randn(4, 3, 8, 8, generator=draw) for _ in range(2))
    indices = torch.arange(NUM_IMAGES)
    return Batch(views=views, indices=indices, step=step, labelled=labelled, labels=labels, teachers_labelled=teachers)


def local_batch(step: int, num_views: int, *, shares: tuple[int, int] | None = None) -> Batch:
    """This rank's part of a global batch: an equal one, or that of two ranks who share it as `shares`."""
    whole = global_batch(step)
    labelled, labels = whole.labelled_part()

    def part(tensor: Tensor) -> Tensor:
        return share(tensor, first=None if shares is None else len(tensor) * shares[0] // sum(shares))

    return Batch(
        views=tuple(part(view) for view in whole.views[:num_views]),
        indices=part(whole.indices),
        step=step,
        labelled=part(labelled),
        labels=part(labels),
        teachers_labelled=part(whole.teachers_labelled_part()),
        shares=shares if world_size() > 1 else None,
    )


def train(name: str) -> dict[str, Any]:
    """Two steps of a method under DDP: losses, the first step's gradients and all tensors at the end."""
    config = METHODS[name]
    method = build_method(config, seed=3)
    wrapped = distribute(method)
    smoothing = spatial_temporal_smoothing(0.5, 0.5, buffers=method.teacher_buffers)
    smoother = Smoother(student=method.student, teacher=method.teacher, config=smoothing, seed=0)
    optimizer = torch.optim.SGD(method.student.parameters(), lr=0.05)
    losses, gradients = [], {}
    for step in range(2):
        result = wrapped(local_batch(step, 3 if isinstance(config, DinoConfig) else 2))
        optimizer.zero_grad()
        result.loss.backward()
        method.adjust_gradients_(step)
        if step == 0:
            gradients = {n: p.grad.clone() for n, p in method.student.named_parameters() if p.grad is not None}
        optimizer.step()
        smoother.update()
        losses.append(result.loss.detach())
    apart = not method.statistics_are_shared
    method.share_statistics_()
    assert apart == (world_size() > 1 and isinstance(config, MoCoConfig))
    return {"losses": torch.stack(losses), "gradients": gradients, "state": method.state_dict()}


def learner_of(name: str, **changes: Any) -> Learner:
    """The parts of a step of a method, with settings of the training."""
    method, record = build_method(METHODS[name], seed=3), method_record(METHODS[name])
    assert record is not None
    config = TrainingConfig(
        method=METHODS[name],
        smoothing=spatial_temporal_smoothing(0.5, 0.5, buffers=method.teacher_buffers),
        data=DataConfig(views=record.views),
        steps=2,
        **changes,
    )
    return Learner(config, method, LocalRuntime("nowhere", progress=False), total_steps=2, steps_per_epoch=1)


def micro_batches(name: str) -> list[Batch]:
    return [local_batch(step, 3 if isinstance(METHODS[name], DinoConfig) else 2) for step in range(2)]


def accumulate(name: str) -> dict[str, Any]:
    """The loss and the gradients of a step of two micro-batches."""
    learner = learner_of(name)
    loss = learner.accumulate_gradients(micro_batches(name))["loss"]
    student = learner.method.student
    return {"loss": loss, "gradients": {n: p.grad for n, p in student.named_parameters() if p.grad is not None}}


def share_unevenly(name: str) -> dict[str, Any]:
    """The loss, the gradients and all tensors after a step of a micro-batch that rank 0 has three quarters of."""
    learner = learner_of(name)
    num_views = 3 if isinstance(METHODS[name], DinoConfig) else 2
    metrics = learner.accumulate_gradients([local_batch(0, num_views, shares=(3, 1))])
    student = learner.method.student
    gradients = {n: p.grad.clone() for n, p in student.named_parameters() if p.grad is not None}
    learner.update_student(0)
    learner.update_teacher(0)
    return {"loss": metrics["loss"], "gradients": gradients, "state": learner.method.state_dict()}


def exchange() -> dict[str, Tensor]:
    """A global batch, an order, and this rank's part of the batch in that order."""
    draw = torch.Generator().manual_seed(7)
    images = torch.randn(NUM_IMAGES, 3, 4, 2, generator=draw).to(memory_format=torch.channels_last)
    order = torch.randperm(NUM_IMAGES, generator=draw)
    return {"images": images, "order": order, "mine": exchange_rows(share(images), order)}


def run_all() -> dict[str, Any]:
    norms = {f"norm_{kind}": normalise(kind) for kind in NORM_INPUTS}
    accumulated = {f"accumulated_{name}": accumulate(name) for name in ACCUMULATED}
    uneven = {f"uneven_{name}": share_unevenly(name) for name in UNEVEN}
    return {"exchange": exchange(), **norms, **accumulated, **uneven, **{name: train(name) for name in METHODS}}


def main(rank: int, world: int, store_file: str, output_file: str) -> None:
    torch.set_num_threads(1)
    synchronised_kernels.register()
    store = dist.FileStore(store_file, world)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=240))
    results = run_all()
    torch.save(results, Path(output_file))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
