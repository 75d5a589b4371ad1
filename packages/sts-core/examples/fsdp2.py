"""A teacher of an FSDP2 student on two CPU processes: each moves its own shards, and the whole is what one would keep.

OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 packages/sts-core/examples/fsdp2.py

Some ten seconds. For GPUs replace "cpu" by "cuda" and gloo by nccl, set each rank's device and move network and batches
there; no GPU has run it yet.
"""

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from sts_core import Smoother, make_teacher, spatial_temporal_smoothing

CONFIG = spatial_temporal_smoothing(0.9, 0.5, granularity="neuron")
STEPS, BATCH = 20, 8


def network() -> nn.Sequential:
    torch.manual_seed(0)  # the same on every rank
    return nn.Sequential(nn.Linear(16, 33), nn.ReLU(), nn.Linear(33, 16))


def train(student: nn.Module, batches: Tensor) -> nn.Module:
    """A loop like any other; returns the teacher."""
    teacher = make_teacher(student)  # cut as the student is
    smoother = Smoother(student=student, teacher=teacher, config=CONFIG, seed=0)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    smoother.attach(optimizer)
    for inputs in batches:
        with torch.no_grad():
            targets = teacher(inputs)
        (student(inputs) - targets - inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return teacher


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def main() -> None:
    distributed.init_process_group("gloo")
    rank, mesh = distributed.get_rank(), init_device_mesh("cpu", (distributed.get_world_size(),))
    # Both ranks see the same batch here, so that a single process can check the outcome to the bit.
    batches = torch.randn(STEPS, BATCH, 16, generator=torch.Generator().manual_seed(1))
    student = network()
    fully_shard(student[2], mesh=mesh)
    fully_shard(student, mesh=mesh)
    teacher = train(student, batches)
    sharded = {name: whole(value) for name, value in teacher.state_dict().items()}
    alone = train(network(), batches).state_dict()
    largest = max(float((sharded[name] - alone[name]).abs().max()) for name in alone)
    kept = sum(value.to_local().numel() for value in teacher.parameters() if isinstance(value, DTensor))
    total = sum(value.numel() for value in alone.values())
    kept_by = f"rank {rank} keeps {kept} of {total} weights"
    print(f"{kept_by}; the gathered teacher differs by {largest:.1e} from that of one process", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
