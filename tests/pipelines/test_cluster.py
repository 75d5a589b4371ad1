"""The local cluster's surroundings: what it leaves behind and what it respects."""

import os
import socket
import subprocess
from pathlib import Path

import pytest

from sts_pipelines import cluster
from sts_pipelines.errors import RunError
from sts_pipelines.main import main
from sts_pipelines.pipeline import ClusterConfig


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


def test_gpus_that_a_machine_does_not_have_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.chdir(tmp_path)
    assert main(["run", "byol-imagenet-200ep-sts", "--data.root", "/nowhere"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("sts: 8 workers need a GPU each, but this machine has 2: ")
    assert error.count("\n") == 1


def test_a_cluster_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def refuse(**options: object) -> None:
        raise ConnectionError("Could not find any running Ray instance.\nAnd much more.")

    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    config = ClusterConfig(num_workers=1, address="auto")
    with pytest.raises(RunError, match=r"cannot join the Ray cluster at auto: .* instance\.$"):
        cluster.ray_cluster(config, num_cpus=1).__enter__()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}"])
def test_an_address_where_nobody_answers_is_one_line_at_once(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.socket() as bound:  # a port that nobody listens on, and that nobody can take meanwhile
        bound.bind(("127.0.0.1", 0))
        address = form.format(bound.getsockname()[1])
        with pytest.raises(RunError, match=r"cannot join .* nothing answers there"):
            cluster.ray_cluster(ClusterConfig(num_workers=1, address=address), num_cpus=1).__enter__()


def test_a_joined_cluster_that_is_too_small_is_waited_for_with_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import ray

    monkeypatch.setattr(ray, "init", lambda **options: None)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 64.0})
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with cluster.ray_cluster(ClusterConfig(num_workers=8, cpus_per_worker=8.0, address="auto"), num_cpus=64):
        pass
    assert capsys.readouterr().err == "waiting: the workers need 8 GPUs, the cluster has 0 so far ...\n"
