"""The commands of all pages, run one after the other as a reader would, only shorter and in this process."""

import shlex
from pathlib import Path

import pytest

from sts_pipelines.cli.main import main
from tests.pipelines.catalog.test_commands import trained_network
from tests.workspace.guides import PAGES, blocks, commands

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(900)]
SHORTER = ["--steps", "1", "--log-every-steps", "1", "--cluster.num-workers", "0"]
SMALLER = ["--epochs", "null", "--global-batch-size", "8", "--data.num-workers", "0", "--evaluation.after-training", ""]
FEWER_CELLS = ["--sweep.momenta", "0.9", "--sweep.preserve-probabilities", "0,0.5"]


def shortened(command: str, imagenet: Path, made: list[Path]) -> tuple[list[str], str | None]:
    """The words of a command that takes seconds, on data and runs that exist, and where its output goes."""
    command, _, output = command.partition(">")
    left = list(made)
    words = [str(taken(word, left)) if word.startswith("runs/") else word for word in shlex.split(command)]
    there = {"/data/imagenet": str(imagenet), "photos": str(imagenet)}
    if "resnet50.a1_in1k" in words:
        there |= {"resnet50.a1_in1k": str(trained_network(imagenet))}
    words = [there.get(word, word) for word in words[1:]]
    if words[0] == "bench":
        words += ["--num-steps", "1"]
    if words[0] in ("run", "sweep"):
        words += SHORTER + (SMALLER if {"imagenet", "photos"} & {*words[1].split("-")} else [])
        words += ["--method.backbone", "test_resnet"] if "photos" in words[1] else []
    if words[0] == "sweep" and "--sweep.over" not in words:
        words += FEWER_CELLS
    return words, output.strip() or None


def taken(word: str, left: list[Path]) -> Path:
    """Of the runs that are there, the one that a page means by runs/NAME-DIGEST, or any other."""
    name = word.removeprefix("runs/").rpartition("-")[0]
    return left.pop(next((place for place, run in enumerate(left) if name and run.name.startswith(name)), 0))


def test_every_command_of_the_pages_runs(
    imagenet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = [command for page in PAGES for block in blocks(page, "bash") if block.runs for command in commands(block)]
    assert len(run) > 20
    done: list[tuple[list[str], str | None]] = []
    for command in run:
        words, output = shortened(command, imagenet, sorted((tmp_path / "runs").glob("*/")))
        if (words, output) in done:
            continue
        done.append((words, output))
        assert main(words) == 0, f"{command}: {capsys.readouterr().err}"
        printed = capsys.readouterr().out
        assert printed, command
        if output is not None:
            (tmp_path / output).write_text(printed)
