"""The local cluster's surroundings: what it leaves behind and what it respects."""

import os
import subprocess
from pathlib import Path

import pytest

from sts_pipelines import cluster


def test_folders_of_killed_commands_are_removed_and_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    dead, kept, alive, foreign = f"sts-{ended.pid}-a", f"sts-{ended.pid}-b", f"sts-{os.getpid()}-c", "sts-x-y"
    for name in (dead, kept, alive, foreign):
        (tmp_path / name).mkdir()
    (tmp_path / kept / "keep").touch()
    monkeypatch.setattr("os.path.isdir", lambda path: False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    new = cluster.session_folder()
    assert new.name.startswith(f"sts-{os.getpid()}-")
    assert {path.name for path in tmp_path.iterdir()} == {kept, alive, foreign, new.name}


def test_what_the_user_has_set_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_CHDIR_TO_TRIAL_DIR", "1")
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED", raising=False)
    cluster.prepare_environment(local=True)
    assert os.environ["RAY_CHDIR_TO_TRIAL_DIR"] == "1"
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
