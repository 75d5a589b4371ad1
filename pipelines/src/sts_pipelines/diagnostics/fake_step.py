"""A training step on tensors that have shapes and no content: what it would multiply, and what it would hold."""

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from sts_methods import Batch, method_record
from sts_pipelines.config.pipeline import PipelineConfig

BLOCK = 512  # bytes that CUDA's allocator in torch rounds up to
HALVES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.bfloat16,
}  # the CPU's autocast, which serves here, has the former


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """What the forward and backward pass over one worker's micro-batch would take."""

    flops: int
    """Additions and multiplications of matrix products and convolutions."""
    fixed_bytes: int
    """Weights of student and teacher, buffers, optimizer state and, of several workers, DDP's gradients."""
    passing_bytes: int
    """The most that is alive at once beside these: images, activations, and the gradients of a single worker."""


def fake_step(pipeline: PipelineConfig, method: nn.Module) -> StepCost:
    """The cost of a step of `method`, whose weights are only looked at; milliseconds per layer, whatever the batch."""
    training, workers = pipeline.training, max(1, pipeline.cluster.num_workers)
    with FakeTensorMode(allow_non_fake_inputs=True):
        state = {name: _fake(tensor) for name, tensor in _named_tensors(method).items()}
        trained = [tensor for tensor in state.values() if tensor.requires_grad]
        if workers > 1:  # DDP holds all gradients, always
            for tensor in trained:
                tensor.grad = torch.zeros_like(tensor)
        gradients = [tensor.grad for tensor in trained if tensor.grad is not None]
        memory, counter = _Memory([*state.values(), *gradients]), FlopCounterMode(display=False)
        dtype = HALVES.get(training.precision)
        with counter, memory:
            batch = batch_of(pipeline, per_worker(pipeline), ratio=training.data.unlabelled_ratio)
            with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
                loss = torch.func.functional_call(method, state, (batch,)).loss
            loss.backward()
    moments = 2 if training.optimizer.name == "adamw" else 1
    weights = sum(_num_bytes(tensor) for tensor in state.values())
    per_weight = moments + (workers > 1)
    return StepCost(
        flops=counter.get_total_flops(),
        fixed_bytes=weights + per_weight * sum(map(_num_bytes, trained)),
        passing_bytes=memory.peak,
    )


def forward_flops(backbone: nn.Module, image_size: int) -> int:
    """Of one image in eval mode, in which the backbone is left."""
    backbone.eval()
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        state = {name: _fake(tensor) for name, tensor in _named_tensors(backbone).items()}
        with FlopCounterMode(display=False) as counter:
            torch.func.functional_call(backbone, state, (torch.empty(2, 3, image_size, image_size),))
    return int(counter.get_total_flops()) // 2


def per_worker(pipeline: PipelineConfig) -> int:
    """The most images of a micro-batch on one worker, of semi-supervised methods the labelled ones."""
    training = pipeline.training
    return math.ceil(training.global_batch_size / max(1, pipeline.cluster.num_workers) / training.accumulation)


def view_sizes(pipeline: PipelineConfig) -> list[int]:
    """The side of every view of an image: DINO's local crops are smaller."""
    data = pipeline.training.data
    return [getattr(view, "size", None) or data.image_size for view in data.make_views()]


def batch_of(pipeline: PipelineConfig, num: int, *, ratio: int, make: Callable[..., Tensor] = torch.empty) -> Batch:
    """A batch of the shapes that the data would have; of semi-supervised views `num` images have labels."""
    training = pipeline.training
    semi, side = training.data.with_labels, training.data.image_size
    others = num * ratio if semi else num
    record = method_record(training.method)
    classes = (record and record.num_classes(training.method)) or 10

    def images(count: int, side: int) -> Tensor:
        return make(count, 3, side, side).to(memory_format=torch.channels_last)

    return Batch(
        views=tuple(images(others, size) for size in view_sizes(pipeline)),
        indices=torch.arange(others),
        step=0,
        labelled=images(num, side) if semi else None,
        labels=torch.arange(num) % classes if semi else None,
        teachers_labelled=images(num, side) if semi else None,
    )


def _named_tensors(module: nn.Module) -> Mapping[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _fake(tensor: Tensor) -> Tensor:
    layout = torch.channels_last if tensor.dim() == 4 else torch.contiguous_format
    return torch.empty(tensor.shape, dtype=tensor.dtype, memory_format=layout).requires_grad_(tensor.requires_grad)


def _num_bytes(tensor: Tensor) -> int:
    return -(-tensor.untyped_storage().nbytes() // BLOCK) * BLOCK


class _Memory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the tensors that operations make until they are freed; `known` ones do not count."""

    def __init__(self, known: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = self._now = 0
        self._alive = {tensor.untyped_storage()._cdata for tensor in known}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor):
                self._hold(tensor)
        return made

    def _hold(self, tensor: Tensor) -> None:
        storage, size = tensor.untyped_storage(), _num_bytes(tensor)
        if storage._cdata not in self._alive:
            self._alive.add(storage._cdata)
            self._now += size
            self.peak = max(self.peak, self._now)
            weakref.finalize(storage, self._free, storage._cdata, size)

    def _free(self, key: int, size: int) -> None:
        self._alive.discard(key)
        self._now -= size
