"""Shards that do not fit are told in one sentence before anything moves."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard

from sts_core import PairingError, Smoother, fragment_age, make_teacher, spatial_ensemble
from tests.core.sharded.ranks import cut_by, network

CONFIG = spatial_ensemble(0.5)


@pytest.fixture(autouse=True)
def _one_rank(tmp_path: Path) -> Iterator[None]:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.fixture
def mesh() -> DeviceMesh:
    return DeviceMesh("cpu", [0])


def smoother(student: nn.Module, teacher: nn.Module) -> Smoother:
    return Smoother(student=student, teacher=teacher, config=CONFIG, seed=0)


def test_a_teacher_cut_otherwise_than_its_student_is_refused(mesh: DeviceMesh) -> None:
    rows, columns = cut_by(Shard(0))(network(), mesh), cut_by(Shard(1))(network(), mesh)
    with pytest.raises(PairingError, match=r"sharded alike, but '0.weight' is \(Shard\(dim=0\),\) of .* in the "):
        smoother(rows, columns)
    with pytest.raises(PairingError, match=r"'0.weight' is \(Shard\(dim=0\),\) of .* and whole in the teacher: make"):
        smoother(rows, make_teacher(network()))


def test_a_teacher_on_another_mesh_is_refused(mesh: DeviceMesh) -> None:
    other = DeviceMesh("cpu", [[0]], mesh_dim_names=("replicate", "shard"))
    student = cut_by(Shard(0))(network(), mesh)
    with pytest.raises(PairingError, match="must be sharded alike, but"):
        smoother(student, cut_by(Replicate(), Shard(0))(network(), other))


def test_memory_that_shards_share_is_refused(mesh: DeviceMesh) -> None:
    student, teacher = cut_by(Shard(0))(network(), mesh), cut_by(Shard(0))(network(), mesh)
    teacher[0].weight = student[0].weight
    with pytest.raises(PairingError, match=r"must not share memory, but '0.weight'"):
        smoother(student, teacher)


def test_a_sharded_teacher_cannot_share_a_part_of_its_student(mesh: DeviceMesh) -> None:
    with pytest.raises(PairingError, match="cannot share parameters with a student that FSDP has sharded"):
        make_teacher(fully_shard(network(), mesh=mesh), names="0.*")


def test_a_sharded_teacher_stays_where_its_student_is(mesh: DeviceMesh) -> None:
    for student in (fully_shard(network(), mesh=mesh), cut_by(Shard(0))(network(), mesh)):
        with pytest.raises(PairingError, match="must stay where its student is, got device cpu: leave it out"):
            make_teacher(student, device="cpu")


def test_a_student_that_was_cut_before_fsdp_is_not_copied(mesh: DeviceMesh) -> None:
    grid = DeviceMesh("cpu", [[0]], mesh_dim_names=("data", "tensor"))
    student = fully_shard(cut_by(Shard(1))(network(), grid["tensor"]), mesh=grid["data"])
    with pytest.raises(PairingError, match="or was a DTensor before: build and shard the teacher as the student was"):
        make_teacher(student)


def test_hooks_and_attributes_of_the_student_are_copied_and_fsdps_are_not_shared(mesh: DeviceMesh) -> None:
    seen: list[nn.Module] = []
    student = network()
    student.note, student.parts = {"a": 1}, [student[2]]
    student[0].register_forward_hook(lambda module, *_: seen.append(module))
    fully_shard(student[2], mesh=mesh)
    fully_shard(student, mesh=mesh)
    student(torch.ones(2, 16))
    teacher = make_teacher(student)
    teacher(torch.ones(2, 16))
    assert seen == [student[0], teacher[0]]
    assert teacher.note == student.note
    assert teacher.parts[0] is teacher[2]
    assert type(teacher[2]) is type(student[2])
    assert not any(weight.requires_grad for weight in teacher.parameters())


def test_a_bfloat16_student_has_a_float32_teacher_in_shards(mesh: DeviceMesh) -> None:
    student = fully_shard(network().bfloat16(), mesh=mesh)
    teacher = make_teacher(student)
    smoother(student, teacher).update()
    for s, t in zip(student.parameters(), teacher.parameters(), strict=True):
        assert t.dtype == torch.float32
        assert torch.equal(t.full_tensor(), s.full_tensor().float())


def test_fragments_have_the_age_of_the_whole_tensors(mesh: DeviceMesh) -> None:
    whole, sharded = (fragment_age(m, CONFIG, seed=1, step=4) for m in (network(), cut_by(Shard(0))(network(), mesh)))
    assert whole == sharded
