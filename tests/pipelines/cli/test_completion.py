"""What a shell offers at the end of a command."""

import shutil
import sys
from pathlib import Path

import pytest

from sts_pipelines.cli.main import main
from sts_pipelines.cli.verbs import VERBS, completion
from tests import processes


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_verbs_then_names_of_that_verb_then_its_flags() -> None:
    assert completion.candidates("sts ") == list(VERBS)
    assert completion.candidates("sts ch") == ["check"]
    assert completion.candidates("sts run byol-digits-s") == ["byol-digits-se", "byol-digits-sts"]
    assert completion.candidates("sts sweep byol-digits-p") == ["byol-digits-p-by-m"]
    assert completion.candidates("sts list --c") == ["--cpu"]
    assert completion.candidates("sts run byol-digits-sts x ") == []


def test_flags_of_a_pipeline_are_its_configs_and_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["--smoothing.momentum"]
    assert completion.candidates("sts run byol-digits-sts --smoothing.m") == wanted
    monkeypatch.setattr(completion, "_computed", lambda name: pytest.fail("computed twice"))
    assert completion.candidates("sts run byol-digits-sts --smoothing.m") == wanted


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert "--seed" in completion.candidates("sts show byol-digits-sts --s")


@pytest.mark.parametrize("shell", completion.SCRIPTS)
def test_every_script_is_accepted_by_its_shell(shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["completion", shell]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    done = processes.run([shell, "-n", script])
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_a_name(tmp_path: Path) -> None:
    """The script in a real bash, with `sts` a function that calls this Python."""
    lines = [
        f'sts() {{ "{sys.executable}" -m sts_pipelines "$@"; }}',
        'eval "$(sts completion bash)"',
        'COMP_LINE="sts run quick"; COMP_POINT=${#COMP_LINE}; _sts; echo "${COMPREPLY[@]}"',
    ]
    done = processes.run(["bash", "-c", "\n".join(lines)])
    assert done.stdout == "quickstart\n", done.stderr
