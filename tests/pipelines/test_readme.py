"""The commands of both READMEs, run one after the other as a reader would, only shorter and in this process."""

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from sts_pipelines.cli.main import main

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
SHORTER = ["--steps", "1", "--log-every-steps", "1", "--cluster.num-workers", "0"]
SMALLER = ["--epochs", "null", "--global-batch-size", "8", "--data.num-workers", "0", "--evaluation.after-training", ""]
FEWER_CELLS = ["--sweep.momenta", "0.9", "--sweep.preserve-probabilities", "0,0.5"]


def commands_of(readme: Path) -> list[str]:
    lines = [line.strip().partition("#")[0] for line in readme.read_text().splitlines()]
    return [line.strip() for line in lines if line.startswith("sts ")]


def shortened(command: str, imagenet: Path, made: list[Path]) -> tuple[list[str], str | None]:
    """The words of a command that takes seconds, on data and runs that exist, and where its output goes."""
    command, _, output = command.partition(">")
    runs: Iterator[Path] = iter(made)
    words = ["" if not word else str(next(runs)) if word.startswith("runs/") else word for word in shlex.split(command)]
    words = [str(imagenet) if word == "/data/imagenet" else word for word in words[1:]]
    if words[0] in ("run", "sweep"):
        words += SHORTER + (SMALLER if "imagenet" in words[1] else [])
    if words[0] == "sweep":
        words += FEWER_CELLS
    return words, output.strip() or None


def test_every_command_of_the_readmes_runs(
    imagenet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lists = [commands_of(ROOT / readme) for readme in ("README.md", "pipelines/README.md")]
    assert all(len(commands) > 5 for commands in lists)
    done: list[tuple[list[str], str | None]] = []
    for command in [command for commands in lists for command in commands]:
        words, output = shortened(command, imagenet, sorted((tmp_path / "runs").glob("*/")))
        if (words, output) in done:
            continue
        done.append((words, output))
        assert main(words) == 0, f"{command}: {capsys.readouterr().err}"
        printed = capsys.readouterr().out
        assert printed, command
        if output is not None:
            (tmp_path / output).write_text(printed)
