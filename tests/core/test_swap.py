"""Inside `swapped()` the student computes as its teacher; afterwards it is what it was, to the bit."""

import re
from pathlib import Path

import pytest
import torch
from torch import distributed, nn

from sts_core import ConfigError, Smoother, SwapError, TeacherBank, make_teacher, temporal_moving_average
from tests.core.networks import moved
from tests.core.test_resume_and_ranks import assert_same, bits

BATCH = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))


def pair_of_networks(dtype: torch.dtype = torch.float32) -> Smoother:
    torch.manual_seed(0)
    student = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).to(dtype)
    teacher = moved(make_teacher(student))
    teacher[1].running_mean.fill_(0.3)
    config = temporal_moving_average(0.9, buffers="keep")
    smoother = Smoother(student=student, teacher=teacher, config=config, seed=0)
    student.eval(), teacher.eval()
    return smoother


def test_the_student_computes_as_the_teacher_with_buffers_that_are_the_teachers_own() -> None:
    smoother = pair_of_networks()
    student, teacher = smoother.student, smoother.teacher
    before, tensors = bits(student), list(student.parameters())
    with smoother.swapped() as inside:
        assert inside is student
        assert_same(bits(student), bits(teacher))
        assert torch.equal(student(BATCH), teacher(BATCH))
    assert_same(bits(student), before)
    assert all(a is b for a, b in zip(student.parameters(), tensors, strict=True))


def test_a_bfloat16_student_and_its_float32_teacher_come_back_bit_for_bit() -> None:
    smoother = pair_of_networks(torch.bfloat16)
    student, teacher = bits(smoother.student), bits(smoother.teacher)
    with smoother.swapped():
        assert_same([t.to(s.dtype) for s, t in zip(student, teacher, strict=True)], bits(smoother.student))
        assert smoother.student[0].weight.dtype == torch.bfloat16
    assert_same(bits(smoother.student), student)
    assert_same(bits(smoother.teacher), teacher)


def test_an_exception_and_statistics_of_the_block_leave_no_trace() -> None:
    smoother = pair_of_networks()
    student, teacher = bits(smoother.student), bits(smoother.teacher)
    with smoother.swapped():
        smoother.student.train()(BATCH)  # batch norm writes its statistics
    with pytest.raises(RuntimeError, match="mat1 and mat2"), smoother.swapped():
        smoother.student(BATCH[:, :3])
    assert_same(bits(smoother.student), student)
    assert_same(bits(smoother.teacher), teacher)
    with smoother.swapped():
        assert_same(bits(smoother.student), teacher)


def test_nesting_and_updates_inside_are_refused_in_words() -> None:
    smoother = pair_of_networks()
    bank = TeacherBank(student=smoother.student, configs={"tma": temporal_moving_average(0.9)}, seed=0)
    teacher = bits(smoother.teacher)
    with smoother.swapped():
        for enter in (smoother.swapped, lambda: bank.swapped("tma")):
            with pytest.raises(SwapError, match=r"swapped\(\) must not begin inside swapped\(\), where the student"):
                enter().__enter__()
        for update in (smoother.update, bank.update):
            with pytest.raises(SwapError, match=r"a teacher must not be updated inside swapped\(\)"):
                update()
    assert smoother.step == bank.step == 0
    assert_same(bits(smoother.teacher), teacher)


def test_a_wrapper_does_not_hide_that_its_module_is_swapped() -> None:
    plain = pair_of_networks()
    wrapper = torch.compile(plain.student, backend="eager")
    wrapped = Smoother(student=wrapper, teacher=make_teacher(plain.student), config=plain.config, seed=0)
    for outer, inner in ((plain, wrapped), (wrapped, plain)):
        with outer.swapped():
            with pytest.raises(SwapError, match=r"swapped\(\) must not begin inside"):
                inner.swapped().__enter__()
            with pytest.raises(SwapError, match="a teacher must not be updated inside"):
                inner.update()


def test_an_attached_optimizer_refuses_to_step_inside() -> None:
    smoother = pair_of_networks()
    optimizer = torch.optim.SGD(smoother.student.parameters(), lr=0.1)
    smoother.attach(optimizer)
    smoother.student(BATCH).sum().backward()
    with smoother.swapped():
        inside = bits(smoother.student)
        with pytest.raises(SwapError, match=r"an optimizer must not step inside swapped\(\)"):
            optimizer.step()
        assert_same(bits(smoother.student), inside)
    optimizer.step()
    assert smoother.step == 1


def test_training_inside_is_told_at_the_end_and_undone() -> None:
    smoother = pair_of_networks()
    before = bits(smoother.student)
    optimizer = torch.optim.SGD(smoother.student.parameters(), lr=0.1)
    smoother.student(BATCH).sum().backward()
    with pytest.raises(SwapError, match=r"must not change inside swapped\(\): what was"), smoother.swapped():
        optimizer.step()
    assert_same(bits(smoother.student), before)


def test_a_bank_lends_the_teacher_that_is_named() -> None:
    student = pair_of_networks().student
    configs = {"fast": temporal_moving_average(0.1), "slow": temporal_moving_average(0.9)}
    bank = TeacherBank(student=student, configs=configs, seed=0)
    with torch.no_grad():
        student[0].weight.add_(1)
    bank.update()
    for name in configs:
        with bank.swapped(name):
            assert_same(bits(student), bits(bank.teachers[name]))
    with pytest.raises(ConfigError, match=re.escape("swapped() takes one of the teachers fast, slow, got 'tma'")):
        bank.swapped("tma")


def test_compiled_graphs_see_the_exchange() -> None:
    smoother = pair_of_networks()
    compiled = torch.compile(smoother.student, backend="aot_eager")
    smoother = Smoother(student=compiled, teacher=smoother.teacher, config=smoother.config, seed=0)
    with torch.no_grad():
        own = compiled(BATCH)
        with smoother.swapped() as inside:
            torch.testing.assert_close(inside(BATCH), smoother.teacher(BATCH))
        assert torch.equal(compiled(BATCH), own)
    assert not torch.equal(own, smoother.teacher(BATCH))


def test_it_works_under_distributed_data_parallel(tmp_path: Path) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        single = pair_of_networks()
        ddp = nn.parallel.DistributedDataParallel(single.student)
        smoother = Smoother(student=ddp, teacher=single.teacher, config=single.config, seed=0)
        own = ddp(BATCH)
        with smoother.swapped():
            assert torch.equal(ddp(BATCH), smoother.teacher(BATCH))
        ddp(BATCH).sum().backward()
        assert torch.equal(ddp(BATCH), own)
    finally:
        distributed.destroy_process_group()


def test_in_inference_mode_too_and_training_goes_on() -> None:
    smoother = pair_of_networks()
    student = smoother.student
    before = bits(student)
    with torch.inference_mode(), smoother.swapped():
        assert torch.equal(student(BATCH), smoother.teacher(BATCH))
    assert_same(bits(student), before)
    student(BATCH).sum().backward()
    with torch.inference_mode():
        smoother.update()
    assert smoother.step == 1


def test_a_backward_pass_across_it_is_refused_by_autograd() -> None:
    smoother = pair_of_networks()
    loss = smoother.student(BATCH).square().sum()
    with smoother.swapped():
        pass
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
