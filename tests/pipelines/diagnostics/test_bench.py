"""sts bench: a few real steps, what they cost and what a whole run would."""

import contextlib
import re
import tempfile
from pathlib import Path

import pytest
import torch

from sts_pipelines.cli.main import main
from sts_pipelines.diagnostics.bench import WARM_UP, _Clock, _EnoughError, _measurable
from sts_pipelines.errors import UsageError

SMALL = ("--method.backbone", "test_resnet", "--data.image-size", "32", "--data.num-workers", "0")


@pytest.fixture(autouse=True)
def empty_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is left behind in the working directory, or in that of temporary files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def left_in(folder: Path) -> list[str]:
    """What is there beside the cache of torch's, which importing it makes."""
    return [path.name for path in folder.iterdir() if not path.name.startswith("torchinductor")]


def test_real_steps_are_measured_by_phase_and_nothing_is_left(
    empty_folders: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "byol-digits-sts", "--num-steps", "2"]) == 0
    text = capsys.readouterr().out
    assert re.match(rf"byol-digits-sts: 2 steps on \d+ CPU threads?, after {WARM_UP} to warm up\n", text)
    assert re.search(r"^images/s +[\d.,]+ in steps of 64$", text, re.MULTILINE)
    assert re.search(
        r"^step +[\d.,]+ ms: input [\d.,]+, student [\d.,]+, teacher [\d.,]+, end of step [\d.,]+$", text, re.MULTILINE
    )
    assert re.search(r"^whole run +[\d.,]+ \w+: 154 steps \d+:\d\d, evaluation \d+:\d\d$", text, re.MULTILINE)
    assert max(len(line) for line in text.splitlines() if not line.startswith("step")) <= 80
    assert left_in(empty_folders) == []


def test_made_up_images_stand_in_for_those_that_are_not_there(
    empty_folders: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "byol-imagenet-p-by-m"
    assert main(["bench", name, *SMALL]) == 2
    assert "set root; --synthetic measures with images that are made up" in capsys.readouterr().err
    assert main(["bench", name, *SMALL, "--synthetic", "--num-steps", "1", "--global-batch-size", "32"]) == 0
    text = capsys.readouterr().out
    assert "on images that are made up, not on imagefolder (--synthetic)" in text
    assert "in steps of 4\n" in text, "the share of one of 8 workers"
    assert ": 8,007,200 steps " in text, "200 epochs of ImageNet"
    assert re.search(r"^all runs +[\d.,]+ \w+: 32 of them, one after the other$", text, re.MULTILINE)
    assert "for 8 workers, each like this one" in text
    assert left_in(empty_folders) == []


def test_a_training_that_is_over_too_soon_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "byol-digits-sts", "--steps", "2"]) == 2
    assert (
        "takes at least 6 steps, 5 of them to warm up, but byol-digits-sts is over after 2" in capsys.readouterr().err
    )
    assert main(["bench", "byol-digits-sts", "--num-steps", "0"]) == 2


def test_a_run_shorter_than_the_bench_has_all_it_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    for kind, least in (("cpu", 1), ("cuda", 2)):
        device = torch.device(kind)
        for left in range(least, 80):
            clock = _Clock(_measurable(50, total=WARM_UP + left, device=device, name="short"), device)
            ended(clock, steps=WARM_UP + left)
            assert clock.steps == clock.num_steps >= min(50, left * 10 // 11 - 1)
            assert clock.phase_steps > 0
            assert clock.step - clock.num_steps == (0 if kind == "cpu" else max(1, clock.num_steps // 10))
        with pytest.raises(UsageError, match=f"at least {WARM_UP + least} steps"):
            _measurable(50, total=WARM_UP + least - 1, device=device, name="short")


def ended(clock: _Clock, *, steps: int) -> None:
    """The clock is told of so many steps, or of as many as it wants."""
    with contextlib.suppress(_EnoughError):
        for _ in range(steps):
            for phase in ("input", "student", "teacher", "end of step"):
                clock.ended(phase)


def test_a_gpu_is_waited_for_in_a_tenth_of_the_steps_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []
    clock = _Clock(20, torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: waits.append(clock.step))
    ended(clock, steps=100)
    assert waits == [0, 20, *[20] * 4, *[21] * 4], "at the first and last step, then in every phase of two more"
    assert (clock.steps, clock.phase_steps) == (20, 2)
    assert set(clock.seconds) == {"input", "student", "teacher", "end of step"}
