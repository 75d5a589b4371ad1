"""What a shell offers at the end of a command."""

import os
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


# `sts` is a function that calls this Python; the last word that is printed is the completed one. In zsh, which only
# completes at a terminal, it is the end of a command that was typed, completed and run.
REAL_SHELLS = {
    "bash": """
sts() { "$PYTHON" -m sts_pipelines "$@"; }
eval "$(sts completion bash)"
COMP_LINE="TYPED"; COMP_POINT=${#COMP_LINE}; _sts; echo "${COMPREPLY[@]}"
""",
    "zsh": r"""
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell 'PS1=; autoload -Uz compinit && compinit -D -u'
zpty -w shell 'sts() { if [ "$1" = completion ]; then "$PYTHON" -m sts_pipelines "$@"; else echo "told $*"; fi; }'
zpty -w shell 'eval "$(sts completion zsh)"; echo rea""dy'
zpty -r shell said '*ready*'
zpty -w -n shell $'TYPED\t\n'
zpty -r shell said $'*told *\n'
print -r -- "$said"
""",
    "fish": """
function sts; $PYTHON -m sts_pipelines $argv; end
sts completion fish | source
complete -C "TYPED"
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("shell", REAL_SHELLS)
def test_a_real_shell_completes_names_and_flags(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    bare = {"bash": "--norc", "zsh": "-f", "fish": "--no-config"}[shell]
    for line, word in (("run quick", "quickstart"), ("show byol-digits-sts --smoothing.m", "--smoothing.momentum")):
        script = REAL_SHELLS[shell].replace("TYPED", f"sts {line}")
        done = processes.run([shell, bare, "-c", script], env=os.environ | {"PYTHON": sys.executable})
        assert done.stdout.split()[-1] == word, done.stdout + done.stderr
