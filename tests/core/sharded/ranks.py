"""What eight processes do together: teachers in shards on meshes of several sizes, beside a teacher in one piece."""

import json
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

from sts_core import RankMismatchError, Smoother, SmoothingConfig, make_teacher, parameter_drift
from sts_core.distributed import verify_ranks

SIZES = (1, 2, 3, 4, 8)
CONFIGS = {
    f"{granularity} {p}": SmoothingConfig(momentum=0.9, preserve_probability=p, granularity=granularity)
    for granularity, p in [("layer", 0.0), ("layer", 0.5), ("module", 0.5), ("channel", 0.5), ("neuron", 0.6)]
} | {"neuron 0.98": SmoothingConfig(momentum=0.9, preserve_probability=0.98, granularity="neuron", buffers="smooth")}


def network() -> nn.Sequential:
    """Rows that no number of ranks divides, fewer rows than ranks, and more weights than a tile of a kernel."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 257), nn.BatchNorm1d(257), nn.Linear(257, 131), nn.Linear(131, 3))


def cut_by_fsdp(student: nn.Sequential, mesh: DeviceMesh) -> nn.Module:
    fully_shard(student[2], mesh=mesh)
    return fully_shard(student, mesh=mesh)


def cut_by(*placements: Any) -> Callable[[nn.Sequential, DeviceMesh], nn.Module]:
    """Tensor parallel: matrices by these placements, other tensors on every rank."""

    def cut(student: nn.Sequential, mesh: DeviceMesh) -> nn.Module:
        for module in student:
            for name, tensor in list(module.named_parameters(recurse=False)):
                places = placements if tensor.dim() > 1 else [Replicate()] * mesh.ndim
                module.register_parameter(name, nn.Parameter(distribute_tensor(tensor.detach(), mesh, places)))
        return student

    return cut


def train_step(student: nn.Module, step: int) -> None:
    """Something that moves every weight, the same whatever the shards."""
    generator = torch.Generator().manual_seed(step)
    with torch.no_grad():
        for tensor in student.parameters():
            noise = torch.randn(tensor.shape, generator=generator)
            if isinstance(tensor, DTensor):
                noise = distribute_tensor(noise, tensor.device_mesh, tensor.placements, src_data_rank=None)
            tensor.add_(noise)
        student[1].running_mean.add_(step)


def gathered(module: nn.Module) -> list[Tensor]:
    whole = [t.full_tensor() if isinstance(t, DTensor) else t for t in module.state_dict().values()]
    return [tensor.detach().clone() for tensor in whole]


def equal(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(gathered(one), gathered(other), strict=True))


def follow(student: nn.Module, teacher: nn.Module, config: SmoothingConfig, steps: range) -> Smoother:
    smoother = Smoother(student=student, teacher=teacher, config=config, seed=11)
    smoother.step = steps.start
    for step in steps:
        train_step(student, step)
        with CommDebugMode() as communication:
            smoother.update()
        assert communication.get_total_counts() == 0
    return smoother


def followed(student: nn.Module) -> dict[str, Smoother]:
    """One teacher for each config, all of them of one student that makes four steps."""
    smoothers = {
        name: Smoother(student=student, teacher=make_teacher(student), config=config, seed=11)
        for name, config in CONFIGS.items()
    }
    for step in range(4):
        train_step(student, step)
        with CommDebugMode() as communication:
            for smoother in smoothers.values():
                smoother.update()
        assert communication.get_total_counts() == 0
    return smoothers


@lru_cache(maxsize=1)
def in_one_piece() -> dict[str, list[Tensor]]:
    """The same teachers in a single process."""
    return {name: gathered(smoother.teacher) for name, smoother in followed(network()).items()}


def check_cut(cut: Callable[[nn.Sequential, DeviceMesh], nn.Module], mesh: DeviceMesh) -> Iterator[tuple[str, bool]]:
    """For each config: whether the gathered teacher is the one in one piece."""
    for name, smoother in followed(cut(network(), mesh)).items():
        pairs = zip(gathered(smoother.teacher), in_one_piece()[name], strict=True)
        yield name, all(torch.equal(ours, expected) for ours, expected in pairs)


def check_training(mesh: DeviceMesh) -> Iterator[tuple[str, bool]]:
    """A loop as people write it: the optimizer is attached, teacher and student are evaluated between the steps."""
    student = cut_by_fsdp(network(), mesh)
    shadow = network()  # takes over the student's weights after every step
    config = CONFIGS["neuron 0.6"]
    smoother = Smoother(student=student, teacher=make_teacher(student), config=config, seed=11)
    beside = Smoother(student=shadow, teacher=make_teacher(shadow), config=config, seed=11)
    optimizer = torch.optim.AdamW(student.parameters(), lr=0.01)
    smoother.attach(optimizer)
    batch = torch.randn(8, 16, generator=torch.Generator().manual_seed(5))
    swaps = []
    for _ in range(3):
        student.train()(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        for tensor, value in zip(shadow.state_dict().values(), gathered(student), strict=True):
            tensor.copy_(value)
        beside.update()
        swaps.append(evaluations_agree(smoother, beside, batch))
    yield "attached", smoother.step == 3 and equal(smoother.teacher, beside.teacher)
    yield "swapped", all(swaps)


@torch.no_grad()
def evaluations_agree(smoother: Smoother, beside: Smoother, batch: Tensor) -> bool:
    """Forward passes leave FSDP's outermost module with gathered weights: none of them may be stale afterwards."""
    student, teacher = smoother.student.eval(), smoother.teacher.eval()
    before, own = gathered(student), student(batch)
    with smoother.swapped():
        as_teacher = student(batch)
    again = student(batch)  # at once: a state dict would make FSDP hold its shards
    expected = beside.teacher.eval()(batch)
    after = all(torch.equal(a, b) for a, b in zip(gathered(student), before, strict=True))
    return after and all(map(torch.equal, (as_teacher, teacher(batch), again), (expected, expected, own)))


def state_of(smoother: Smoother) -> dict[str, Any]:
    parts = {"student": smoother.student, "teacher": smoother.teacher, "smoother": smoother}
    return {name: part.state_dict() for name, part in parts.items()}


def check_watching(grid: DeviceMesh, rank: int) -> Iterator[tuple[str, bool]]:
    """Two replicas of four shards: a rank whose copy differs is named on every rank."""
    student = cut_by_fsdp(network(), grid)
    teacher = make_teacher(student)
    verify_ranks(teacher.named_parameters(), device=torch.device("cpu"))
    follow(student, teacher, CONFIGS["layer 0.0"], range(1))
    whole = [network().requires_grad_(False) for _ in range(2)]
    for module, sharded in zip(whole, (student, teacher), strict=True):
        module.load_state_dict(dict(zip(module.state_dict(), gathered(sharded), strict=True)))
    drift = parameter_drift(student, teacher)
    yield "drift", abs(drift / parameter_drift(*whole) - 1) < 1e-9
    if rank == 6:
        next(teacher.parameters()).to_local().add_(1)
    try:
        verify_ranks(teacher.named_parameters(), device=torch.device("cpu"))
    except RankMismatchError as error:
        yield "replicas", "'0.weight' on rank 6 differs from rank 2's (1 of 8 tensors differ)" in str(error)


def check_checkpoint(folder: str, meshes: dict[int, DeviceMesh], rank: int) -> Iterator[tuple[str, bool]]:
    """Saved by four ranks after two updates, loaded by another number of them and carried on."""
    single = network()
    expected, config = make_teacher(single), CONFIGS["neuron 0.6"]
    follow(single, expected, config, range(4))
    if rank < 4:
        student = cut_by_fsdp(network(), meshes[4])
        teacher = make_teacher(student)
        smoother = follow(student, teacher, config, range(2))
        dcp.save(state_of(smoother), checkpoint_id=folder, process_group=meshes[4].get_group())
    distributed.barrier()
    for size in (1, 3, 8):
        if rank < size:
            student = cut_by_fsdp(network(), meshes[size])
            teacher = make_teacher(student)
            smoother = Smoother(student=student, teacher=teacher, config=config, seed=0)
            state = state_of(smoother)
            dcp.load(state, checkpoint_id=folder, process_group=meshes[size].get_group())
            smoother.load_state_dict(state["smoother"])
            for step in range(2, 4):
                train_step(student, step)
                smoother.update()
            yield f"from 4 to {size}", equal(teacher, expected)


def run(rank: int, world_size: int, folder: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size)
    meshes = {size: DeviceMesh("cpu", list(range(size))) for size in SIZES}
    grid = DeviceMesh("cpu", torch.arange(6).view(2, 3), mesh_dim_names=("a", "b"))
    verdicts: dict[str, bool] = {}

    def note(kind: str, members: int, outcomes: Iterator[tuple[str, bool]]) -> None:
        if rank < members:
            verdicts.update({f"{kind}: {name}": bool(outcome) for name, outcome in outcomes})
        distributed.barrier()

    for size, mesh in meshes.items():
        note(f"fsdp on {size}", size, check_cut(cut_by_fsdp, mesh))
        note(f"training on {size}", size, check_training(mesh))
    note("columns on 3", 3, check_cut(cut_by(Shard(1)), meshes[3]))
    note("rows and columns on 2 x 3", 6, check_cut(cut_by(Shard(0), Shard(1)), grid))
    note("rows twice on 2 x 3", 6, check_cut(cut_by(Shard(0), Shard(0)), grid))
    note("replicas of shards on 2 x 3", 6, check_cut(cut_by_fsdp, grid))
    halves = DeviceMesh("cpu", torch.arange(8).view(2, 4), mesh_dim_names=("a", "b"))
    note("watching", 8, check_watching(halves, rank))
    note("checkpoint", 8, check_checkpoint(f"{folder}/checkpoint", meshes, rank))
    Path(folder, f"{rank}.json").write_text(json.dumps(verdicts))
    distributed.barrier()
    distributed.destroy_process_group()
