"""Contracts: the same teacher on every rank and after a resume, one update per call, banks equal smoothers."""

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from torch import distributed, nn

from sts_core import (
    Applied,
    Smoother,
    TeacherBank,
    make_teacher,
    no_smoothing,
    spatial_ensemble,
    spatial_temporal_smoothing,
    temporal_moving_average,
)
from sts_core.binding import Binding
from tests.core.networks import Net

GRANULARITIES = ["layer", "module", "channel", "neuron"]


def train_step(student: nn.Module, step: int) -> None:
    """Something that moves every weight and depends on the step alone."""
    generator = torch.Generator().manual_seed(step)
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator))
        student.norm.running_mean.add_(1)


def bits(module: nn.Module) -> list[torch.Tensor]:
    return [t.detach().clone() for t in module.state_dict().values()]


def assert_same(a: list[torch.Tensor], b: list[torch.Tensor]) -> None:
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("p", [0.7, 0.98])
def test_resumed_equals_uninterrupted_bit_for_bit(granularity: str, p: float) -> None:
    config = spatial_temporal_smoothing(0.9, p, granularity=granularity)

    def run(stop: int | None) -> list[torch.Tensor]:
        torch.manual_seed(1)
        student = Net()
        teacher = make_teacher(student)
        smoother = Smoother(student=student, teacher=teacher, config=config, seed=5)
        for step in range(6):
            if step == stop:  # a new process: only what was saved survives
                saved = json.loads(json.dumps(smoother.state_dict()))
                student, teacher = copy.deepcopy(student), copy.deepcopy(teacher)
                smoother = Smoother(student=student, teacher=teacher, config=config, seed=999)
                smoother.load_state_dict(saved)
            train_step(student, step)
            smoother.update()
        return bits(teacher)

    whole = run(None)
    for stop in (1, 3, 5):
        assert_same(run(stop), whole)


def test_the_state_is_a_few_numbers(student: nn.Module) -> None:
    smoother = Smoother(student=student, teacher=make_teacher(student), config=no_smoothing(), seed=2**63)
    assert len(json.dumps(smoother.state_dict())) < 300


def _rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    teachers = {granularity: _trained_teacher(rank, granularity) for granularity in GRANULARITIES}
    torch.save(teachers, Path(folder) / f"{rank}.pt")
    distributed.destroy_process_group()


def _trained_teacher(rank: int, granularity: str) -> list[torch.Tensor]:
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(30, 40), nn.BatchNorm1d(40), nn.Linear(40, 20))
    ddp = nn.parallel.DistributedDataParallel(net)
    teacher = make_teacher(ddp)
    config = spatial_temporal_smoothing(0.9, 0.6, granularity=granularity, buffers="keep")  # type: ignore[arg-type]
    smoother = Smoother(student=ddp, teacher=teacher, config=config, seed=17)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    torch.manual_seed(100 + rank)  # ranks differ in data and in the global generator
    for _ in range(4):
        optimizer.zero_grad()
        ddp(torch.randn(8, 30)).square().mean().backward()
        optimizer.step()
        smoother.update()
    return [parameter.detach() for parameter in teacher.parameters()]


@pytest.mark.slow
def test_all_ranks_hold_bit_identical_teachers(tmp_path: Path) -> None:
    # Daemons, or Python would wait for them at its exit when pytest's limit has ended the test.
    mp.start_processes(_rank, args=(str(tmp_path),), nprocs=2, start_method="spawn", daemon=True)
    one, other = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    for granularity in GRANULARITIES:
        assert_same(one[granularity], other[granularity])


def test_gradient_accumulation_makes_one_update_per_optimizer_step(student: nn.Module) -> None:
    teacher = make_teacher(student)
    smoother = Smoother(student=student, teacher=teacher, config=temporal_moving_average(0.5), seed=0)
    for _ in range(2):  # optimizer steps
        for _ in range(4):  # micro-batches
            student.head(torch.ones(1, 70)).sum().backward()
        smoother.update()
    assert smoother.step == 2


@pytest.mark.slow
def test_wrappers_are_seen_through(student: nn.Module) -> None:
    teacher = make_teacher(torch.compile(student))
    assert not hasattr(teacher, "_orig_mod")
    with torch.no_grad():
        student.head.weight.fill_(2.0)
    wrapped = torch.compile(nn.DataParallel(student))
    Smoother(student=wrapped, teacher=torch.compile(teacher), config=no_smoothing(), seed=0).update()
    assert torch.equal(teacher.head.weight, student.head.weight)


def test_tied_parameters_are_updated_once() -> None:
    student = nn.ModuleDict({"embedding": nn.Embedding(11, 5), "output": nn.Linear(5, 11, bias=False)})
    student["output"].weight = student["embedding"].weight
    teacher = make_teacher(student)
    assert teacher["output"].weight is teacher["embedding"].weight
    with torch.no_grad():
        student["embedding"].weight.add_(8.0)
    before = teacher["embedding"].weight.clone()
    Smoother(student=student, teacher=teacher, config=temporal_moving_average(0.75), seed=0).update()
    torch.testing.assert_close(teacher["embedding"].weight, before + 2.0)


def test_make_teacher_copies_fully_freezes_and_keeps_the_mode(student: nn.Module) -> None:
    student.half().eval()
    teacher = make_teacher(student)
    assert not teacher.training
    for t, s in zip(teacher.parameters(), student.parameters(), strict=True):
        assert t.dtype == torch.float32
        assert not t.requires_grad
        assert torch.equal(t, s.float())
    assert all(s.requires_grad for s in student.parameters())


BANK = {
    "none": no_smoothing(),
    "tma": temporal_moving_average(0.99, buffers="smooth"),
    "se": spatial_ensemble(0.98, granularity="neuron"),
    "sts": spatial_temporal_smoothing(0.9, 0.7, granularity="channel", buffers="keep"),
    "sts-neuron": spatial_temporal_smoothing(0.9, 0.7, granularity="neuron", buffers="smooth"),
}


@pytest.mark.parametrize("backend", ["reference", "native"])
def test_a_bank_holds_the_teachers_that_smoothers_of_their_own_would(student: nn.Module, backend: str) -> None:
    bank = TeacherBank(student=student, configs=BANK, seed=4, backend=backend)
    alone = {name: make_teacher(student) for name in BANK}
    smoothers = [
        Smoother(student=student, teacher=alone[name], config=config, seed=4, backend=backend)
        for name, config in BANK.items()
    ]
    for step in range(3):
        train_step(student, step)
        bank.update()
        for smoother in smoothers:
            smoother.update()
    for name in BANK:
        assert_same(bits(bank.teachers[name]), bits(alone[name]))
    assert bank.applied == {name: smoother.applied for name, smoother in zip(BANK, smoothers, strict=True)}


def test_a_bank_says_what_it_applied_and_not_what_it_was_told_to(
    student: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = Binding.update
    monkeypatch.setattr(Binding, "update", lambda self, rules, skip: update(self, [rules[0]] * len(rules)))
    configs = {"tma": temporal_moving_average(0.99), "sts": spatial_temporal_smoothing(0.9, 0.7)}
    bank = TeacherBank(student=student, configs=configs, seed=4)
    assert bank.applied == {}
    bank.update()
    assert bank.applied == dict.fromkeys(configs, Applied(momentum=0.99, preserve_probability=0.0, num_updates=1))


def test_a_bank_resumes_bit_for_bit(student: nn.Module) -> None:
    whole = TeacherBank(student=student, configs=BANK, seed=4)
    for step in range(2):
        train_step(student, step)
        whole.update()
    resumed = TeacherBank(student=student, configs=BANK, seed=0)
    resumed.load_state_dict(copy.deepcopy(whole.state_dict()))
    assert resumed.applied == whole.applied
    train_step(student, 2)
    whole.update()
    resumed.update()
    assert resumed.step == 3
    for name in BANK:
        assert_same(bits(whole.teachers[name]), bits(resumed.teachers[name]))


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])  # noqa: S301 - our own
@pytest.mark.parametrize("kind", ["smoother", "bank"])
def test_a_copy_goes_on_by_itself_with_the_same_draws(clone: Any, kind: str) -> None:
    config = spatial_temporal_smoothing(0.9, 0.7, granularity="neuron")
    student = Net()
    follower: Any = TeacherBank(student=student, configs={"it": config}, seed=5)
    if kind == "smoother":
        follower = Smoother(student=student, teacher=make_teacher(student), config=config, seed=5)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    follower.attach(optimizer)
    copied = clone(follower)
    for step in range(2):
        train_step(student, step)
        train_step(copied.student, step)
        optimizer.step()
        copied.update()  # the optimizer is the original's alone
    teachers = [one.teacher if kind == "smoother" else one.teachers["it"] for one in (follower, copied)]
    assert follower.step == copied.step == 2
    assert_same(*map(bits, teachers))
    assert teachers[0].head.weight.data_ptr() != teachers[1].head.weight.data_ptr()
