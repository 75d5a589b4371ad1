"""`sts doctor` examines the averages in other people's checkpoints, as `python -m sts_core.doctor` does."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from sts_core import make_teacher
from sts_pipelines.cli.main import main
from tests.core.doctor.test_doctor import layouts, trained


@pytest.mark.parametrize("layout", ["lightning-average", "lightning-callback", "timm", "moco", "plain"])
def test_a_sound_average_in_a_file(layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(layouts(*trained(3))[layout], tmp_path / "it.ckpt")
    assert main(["doctor", str(tmp_path / "it.ckpt")]) == 0
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 3
    assert all(line.startswith("ok ") for line in told)


def transformers_folder(folder: Path, steps: int) -> str:
    student, teacher = trained(steps)
    place = folder / f"checkpoint-{steps}"
    place.mkdir()
    (place / "config.json").write_text("{}")  # the model's, not a run's
    save_file(student.state_dict(), place / "model.safetensors")
    save_file(teacher.state_dict(), place / "teacher.safetensors")
    return str(place)


def test_two_checkpoints_of_transformers_tell_the_decay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = [transformers_folder(tmp_path, steps) for steps in (5, 25)]
    assert main(["doctor", *places]) == 0
    assert "over 20 steps like a moving average with m = 0.9 " in capsys.readouterr().out


def test_weights_that_equal_their_average_are_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    student: Any = nn.Linear(2, 2)
    both = {
        f"{name}.{key}": value.clone() for name in ("student", "teacher") for key, value in student.state_dict().items()
    }
    save_file(both, tmp_path / "it.safetensors")
    assert main(["doctor", str(tmp_path / "it.safetensors")]) == 1
    assert "WRONG  teacher, the average of student, equals it to the bit" in capsys.readouterr().out


def test_two_checkpoints_of_ours_are_examined_for_their_averages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for steps in (5, 25):
        (tmp_path / f"step-{steps}").mkdir()
        networks = zip(("student", "teacher"), trained(steps), strict=True)
        method = {f"{name}.{key}": value for name, network in networks for key, value in network.state_dict().items()}
        torch.save({"meta": {"step": steps}, "method": method}, tmp_path / f"step-{steps}" / "state.pt")
    assert main(["doctor", str(tmp_path / "step-5"), str(tmp_path / "step-25")]) == 0
    assert "over 20 steps like a moving average with m = 0.9 " in capsys.readouterr().out


def test_what_holds_no_average_or_code_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_file({"weight": torch.ones(2)}, tmp_path / "it.safetensors")
    torch.save(make_teacher, tmp_path / "code.pt")
    for name, message in {"it.safetensors": "no student with an average", "code.pt": "holds more than tensors"}.items():
        assert main(["doctor", str(tmp_path / name)]) == 2
        told = capsys.readouterr()
        assert message in told.err
        assert told.err.count("\n") == 1
        assert told.out == ""
