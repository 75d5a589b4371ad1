"""A bank's record: each line is what a teacher measures, and a resumed run writes what the straight one does."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sts_core import (
    BankRecord,
    ConfigError,
    StateError,
    TeacherBank,
    averages_and_fragments,
    make_teacher,
    temporal_moving_average,
)
from tests.core.test_resume_and_ranks import assert_same, bits

BATCH = torch.randn(16, 4, generator=torch.Generator().manual_seed(9))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))


def value(module: nn.Module) -> float:
    return float(module(BATCH).square().mean())


def train(record: BankRecord, steps: int) -> None:
    """To this number of updates, with a measurement after every second one."""
    student: Any = record.bank.student
    while record.bank.step < steps:
        with torch.no_grad():
            for parameter in student.parameters():
                parameter.add_(0.1 * (record.bank.step + 1))
            student[1].running_mean.add_(1)
        record.bank.update()
        if record.bank.step % 2 == 0:
            record.measure()


def make(folder: Path) -> BankRecord:
    bank = TeacherBank(student=network(), configs=averages_and_fragments(0.9), seed=1)
    return BankRecord(bank, folder / "averages.jsonl", lambda module: {"value": value(module)})


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "averages.jsonl").read_text().splitlines()]


def test_eight_teachers_three_of_them_averages_of_which_one_is_the_others_control() -> None:
    configs = averages_and_fragments(0.999)
    assert list(configs)[:4] == ["average 0.99", "average 0.999", "average 0.9999", "SE layer"]
    averages = {name: config for name, config in configs.items() if config.preserve_probability == 0}
    assert (len(configs), len(averages)) == (8, 3)
    for name in configs.keys() - averages.keys():
        assert abs(configs[name].effective_momentum - configs["average 0.999"].momentum) < 1e-12
    assert {config.granularity for config in configs.values()} == {"layer", "channel", "neuron"}
    with pytest.raises(ConfigError, match=re.escape("momentum must be in [0.9, 1), for an average ten times as short")):
        averages_and_fragments(0.5)


def test_each_line_is_what_the_network_measures_and_the_student_is_left_as_it_was(tmp_path: Path) -> None:
    record = make(tmp_path)
    record.bank.student[2].eval()
    modes = [module.training for module in record.bank.student.modules()]
    train(record, 4)
    before = bits(record.bank.student)
    record.measure()
    assert_same(bits(record.bank.student), before)
    assert [module.training for module in record.bank.student.modules()] == modes
    head, *found = lines(tmp_path)
    assert list(head["configs"]) == list(record.bank.configs)
    last = {line["teacher"]: line["values"]["value"] for line in found if line["step"] == 4}
    assert last.pop(None) == value(make_teacher(record.bank.student).eval())
    assert last == {name: value(teacher.eval()) for name, teacher in record.bank.teachers.items()}
    assert len(set(last.values())) == 8
    assert [line["step"] for line in found] == [2] * 9 + [4] * 9


def test_a_run_that_is_resumed_replaces_the_lines_of_the_steps_it_makes_again(tmp_path: Path) -> None:
    (tmp_path / "straight").mkdir(), (tmp_path / "cut").mkdir()
    train(make(tmp_path / "straight"), 6)
    first = make(tmp_path / "cut")
    train(first, 3)
    saved, student = first.bank.state_dict(), first.bank.student.state_dict()
    saved = json.loads(json.dumps({k: v for k, v in saved.items() if k != "teachers"})) | {
        "teachers": saved["teachers"]
    }
    kept = {name: tensor.clone() for name, tensor in student.items()}
    teachers = {name: {k: t.clone() for k, t in state.items()} for name, state in saved["teachers"].items()}
    train(first, 4)  # a step that will be made again
    again = make(tmp_path / "cut")
    again.bank.student.load_state_dict(kept)
    again.bank.load_state_dict(saved | {"teachers": teachers})
    train(again, 6)
    assert lines(tmp_path / "cut") == lines(tmp_path / "straight")


def test_only_the_first_process_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = make(tmp_path)
    monkeypatch.setattr("sts_core.averages.record.rank", lambda: 1)
    train(record, 2)
    assert not list(tmp_path.iterdir())


def test_a_diverged_teacher_has_no_value_and_the_others_keep_theirs(tmp_path: Path) -> None:
    record = make(tmp_path)
    with torch.no_grad():
        record.bank.teachers["SE layer"][0].weight.fill_(float("nan"))
    record.measure()
    found = {line["teacher"]: line["values"] for line in lines(tmp_path)[1:]}
    assert found.pop("SE layer") == {}
    assert all(values.keys() == {"value"} for values in found.values())


def test_what_is_no_record_of_this_bank_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "averages.jsonl"
    file.write_text("no record\n")
    with pytest.raises(StateError, match=r"must be a record of a bank, but it is not: name another file"):
        make(tmp_path)
    file.write_text("")
    with pytest.raises(StateError, match=r"must be a record of a bank"):
        make(tmp_path)
    file.unlink()
    train(make(tmp_path), 2)
    written = file.read_text()
    other = TeacherBank(student=network(), configs={"a": temporal_moving_average(0.9)}, seed=1)
    with pytest.raises(StateError, match="is the record of another bank, of other configs or another seed"):
        BankRecord(other, file, lambda module: {})
    assert file.read_text() == written
    with pytest.raises(ConfigError, match="a measure must return at least one named number, got none"):
        BankRecord(other, tmp_path / "other.jsonl", lambda module: {}).measure()
    other.is_spread = True
    with pytest.raises(ConfigError, match="but this bank is spread: leave spread out"):
        BankRecord(other, tmp_path / "other.jsonl", lambda module: {})
