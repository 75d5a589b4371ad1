"""A bank that is spread over ranks: each holds its share, and together they are the bank of one."""

import copy
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from torch import distributed, nn

from sts_core import TeacherBank, spatial_ensemble, spatial_temporal_smoothing, temporal_moving_average
from tests.core.networks import Net
from tests.core.test_resume_and_ranks import train_step

CONFIGS = {
    "tma": temporal_moving_average(0.9),
    "se": spatial_ensemble(0.5),
    "sts": spatial_temporal_smoothing(0.9, 0.5, granularity="channel"),
    "smooth": temporal_moving_average(0.5, buffers="smooth"),
    "keep": spatial_temporal_smoothing(0.9, 0.7, granularity="neuron", buffers="keep"),
}
SAVED, END = 2, 5


def student_at(step: int) -> Net:
    torch.manual_seed(1)
    student = Net()
    for done in range(step):
        train_step(student, done)
    return student


def trained(state: dict[str, Any] | None = None) -> tuple[TeacherBank, dict[str, Any]]:
    """The bank after the last step, and its state in between; from that state on if it is given."""
    student = student_at(0 if state is None else SAVED)
    bank = TeacherBank(student=student, configs=CONFIGS, seed=4, spread=True)
    if state is not None:
        bank.load_state_dict(state)
    halfway: dict[str, Any] = {}
    for step in range(bank.step, END):
        train_step(student, step)
        bank.update()
        if step + 1 == SAVED:
            halfway = copy.deepcopy(bank.state_dict())
    return bank, halfway


def work(rank: int, world_size: int, folder: Path) -> None:
    store = distributed.FileStore(str(folder / "store"), world_size)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    given = folder / "given.pt"
    bank, halfway = trained(torch.load(given) if given.exists() else None)
    held = list(bank.teachers)
    whole = bank.state_dict()
    fetched = {name: None if (teacher := bank.fetch(name)) is None else teacher.state_dict() for name in CONFIGS}
    torch.save({"held": held, "whole": whole, "halfway": halfway, "fetched": fetched}, folder / f"{rank}.pt")
    distributed.barrier()
    distributed.destroy_process_group()


def ranks(world_size: int, folder: Path, given: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    folder.mkdir()
    if given is not None:
        torch.save(given, folder / "given.pt")
    context = mp.spawn(work, (world_size, folder), nprocs=world_size, join=False)
    assert context is not None
    deadline = time.monotonic() + 300
    while not context.join(timeout=10):  # true when all have ended
        assert time.monotonic() < deadline, "the ranks did not end in time"
    return [torch.load(folder / f"{rank}.pt") for rank in range(world_size)]


def assert_same_state(one: dict[str, Any], two: dict[str, Any]) -> None:
    assert {key: one[key] for key in one if key != "teachers"} == {key: two[key] for key in two if key != "teachers"}
    assert list(one["teachers"]) == list(two["teachers"])
    for name, tensors in one["teachers"].items():
        for key, tensor in tensors.items():
            assert torch.equal(tensor, two["teachers"][name][key]), (name, key)


@pytest.mark.slow
def test_ranks_hold_a_share_each_save_the_whole_and_go_on_in_any_number(tmp_path: Path) -> None:
    bank, halfway = trained()
    alone = bank.state_dict()
    two = ranks(2, tmp_path / "two")
    assert [each["held"] for each in two] == [["tma", "sts", "keep"], ["se", "smooth"]]
    assert_same_state(two[0]["whole"], alone)
    assert_same_state(two[0]["halfway"], halfway)
    assert two[1]["whole"]["teachers"] == {}
    for name in CONFIGS:
        assert two[1]["fetched"][name] is None
        for key, tensor in alone["teachers"][name].items():
            assert torch.equal(two[0]["fetched"][name][key], tensor)
    for world_size in (2, 3):  # from the checkpoint of two ranks
        resumed = ranks(world_size, tmp_path / f"resumed-{world_size}", two[0]["halfway"])
        assert_same_state(resumed[0]["whole"], alone)
    assert_same_state(trained(two[0]["halfway"])[0].state_dict(), alone)


def test_buffers_of_the_student_are_copied_when_teachers_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[int] = []
    real = torch._foreach_copy_
    monkeypatch.setattr(torch, "_foreach_copy_", lambda to, of: copies.append(len(to)) or real(to, of))
    student = student_at(0)
    bank = TeacherBank(student=student, configs={f"{k}": temporal_moving_average(0.9) for k in range(8)}, seed=0)
    copies.clear()
    for step in range(3):
        train_step(student, step)
        bank.update()
    assert copies == []
    for teacher in bank.teachers.values():
        for name, buffer in teacher.named_buffers():
            assert torch.equal(buffer, student.get_buffer(name))
    assert copies == [16, 8], "all statistics at once, all counters at once"
    assert isinstance(bank.teachers["0"], nn.Module)
    assert copies == [16, 8], "nothing has changed since"
