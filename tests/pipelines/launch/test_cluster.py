"""The local cluster's surroundings: what it leaves behind and what it respects."""

import contextlib
import os
import signal
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sts_pipelines.cli.main import main
from sts_pipelines.config.cluster import ClusterConfig
from sts_pipelines.errors import RunError, UsageError, WorkersError
from sts_pipelines.launch import cluster, driver
from sts_pipelines.launch.local_ray.session import session_folder

CONNECTION = SimpleNamespace(dashboard_url="127.0.0.1", address_info={"gcs_address": "127.0.0.1:2"})


def test_only_folders_of_killed_commands_and_old_logs_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.path.isdir", lambda path: False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    foreign = tmp_path / "sts-4194305-mydata"
    foreign.mkdir()
    with session_folder() as alive:
        parent = alive.parent
        assert (parent.name, parent.stat().st_mode & 0o777) == (f"sts-ray-{os.getuid()}", 0o700)
        for name in ("killed", "unmarked", "new-logs", "old-logs"):
            (parent / name).mkdir()
        (parent / "killed" / "owned").touch()
        os.utime(parent / "old-logs", (0, 0))
        with session_folder() as second:
            left = {path.name for path in parent.glob("[!.]*")}
            assert left == {alive.name, second.name, "unmarked", "new-logs"}
    assert {path.name for path in parent.glob("[!.]*")} == {"unmarked", "new-logs"}
    assert foreign.is_dir()


@pytest.mark.parametrize(
    ("error", "stays"), [(RunError("the loss is not finite"), False), (WorkersError("lost"), True), (KeyError(), True)]
)
def test_of_a_session_only_logs_that_somebody_may_need_stay(
    error: Exception, stays: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import ray

    monkeypatch.setattr("os.path.isdir", lambda path: False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(ray, "init", lambda *, _temp_dir, **options: _write_logs(Path(_temp_dir)))
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    context = cluster.ray_cluster(ClusterConfig(num_workers=1, use_gpu=False), num_cpus=1)
    with pytest.raises(type(error)), context:
        raise error
    left = list(tmp_path.glob("sts-ray-*/[!.]*"))
    assert [[path.name for path in folder.iterdir()] for folder in left] == ([["raylet.out"]] if stays else [])
    assert all(str(folder) in capsys.readouterr().err for folder in left)


@pytest.mark.parametrize(("port", "asked", "has_one"), [(None, False, False), (None, True, True), (8300, False, True)])
def test_a_dashboard_and_monitors_are_there_for_those_who_need_or_name_it(
    port: int | None,
    asked: bool,
    has_one: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import ray

    found: list[bool] = []

    def init(*, include_dashboard: bool, _temp_dir: str, **options: object) -> SimpleNamespace:
        params = ray._private.parameter.RayParams()
        assert (params.include_log_monitor is not False) == (not params.no_monitor) == include_dashboard
        found.append(include_dashboard)
        return CONNECTION

    monkeypatch.setattr("os.path.isdir", lambda path: False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    config = ClusterConfig(num_workers=1, use_gpu=False, dashboard_port=port)
    with cluster.ray_cluster(config, num_cpus=1, dashboard=asked):
        assert found == [has_one]
    assert ("dashboard is at" in capsys.readouterr().err) == has_one


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray warns about its own deprecated settings
def test_a_run_starts_nothing_of_ray_data_and_no_cleaner_for_a_cluster_that_ends_with_it() -> None:
    from ray.train.torch import TorchTrainer

    def names(trainer: Any) -> set[str]:
        return {type(one).__name__ for one in trainer(print)._create_default_callbacks()}

    usual, cleaner = names(TorchTrainer), "PlacementGroupCleanerCallback"
    assert {"DatasetsCallback", cleaner} < usual
    assert usual - names(driver.trainer_class(alone=False)) == {"DatasetsCallback"}
    assert usual - names(driver.trainer_class(alone=True)) == {"DatasetsCallback", cleaner}


def _write_logs(session: Path) -> SimpleNamespace:
    (session / "session_1" / "logs").mkdir(parents=True)
    (session / "session_1" / "sockets").mkdir()
    (session / "session_1" / "logs" / "raylet.out").touch()
    (session / "session_latest").symlink_to("session_1")
    return CONNECTION


def test_a_folder_of_sessions_that_is_somebody_else_s_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.path.isdir", lambda path: False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"sts-ray-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="must be a folder of your own"), session_folder():
        pass


def test_a_local_cluster_is_our_own_whatever_ray_address_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    asked: list[tuple[str, str | None]] = []

    def init(*, address: str, **options: object) -> SimpleNamespace:
        asked.append((address, os.environ.get("RAY_ADDRESS")))
        return CONNECTION

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    cluster._start(ClusterConfig(num_workers=1, use_gpu=False), tmp_path, num_cpus=1)
    assert asked == [("local", None)]  # neither does it say anything to Ray's own processes
    assert os.environ["RAY_ADDRESS"] == "127.0.0.1:1"


@pytest.mark.parametrize("slow", [1, 2, 3])
def test_a_cluster_that_a_busy_machine_does_not_start_in_time_is_tried_three_times(
    slow: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import ray

    asked: list[str] = []

    def init(*, address: str, **options: object) -> SimpleNamespace:
        asked.append(address)
        if len(asked) <= slow:
            raise RuntimeError("The current node timed out during startup.")
        return CONNECTION

    monkeypatch.setattr(ray, "init", init)
    gives_up = pytest.raises(RunError, match="could not be started on this machine: The current node timed out")
    with gives_up if slow == 3 else contextlib.nullcontext():
        cluster._start(ClusterConfig(num_workers=1, use_gpu=False), tmp_path, num_cpus=1)
    assert len(asked) == min(slow + 1, 3)
    assert capsys.readouterr().err.count("trying again") == min(slow, 2)


@pytest.mark.parametrize("address", [None, "auto"])
def test_ctrl_c_under_ray_is_an_interrupt_as_anywhere_else(
    address: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import ray

    monkeypatch.setattr("os.path.isdir", lambda path: False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(ray, "init", lambda **options: CONNECTION)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 1.0})
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    config = ClusterConfig(num_workers=1, use_gpu=False, address=address)

    def fit(arguments: object, overrides: object) -> int:
        with cluster.ray_cluster(config, num_cpus=1):  # what Ray's trainer does
            signal.signal(signal.SIGINT, lambda number, frame: sys.exit(0))
            signal.raise_signal(signal.SIGINT)
        return 0

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr("sts_pipelines.cli.verbs.run.run", fit)
    assert main(["run", "quickstart"]) == 130
    assert "the same command continues" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before
    assert list(tmp_path.glob("sts-ray-*/[!.]*")) == []


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
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
    assert main(["run", "byol-imagenet-200ep-sts", "--data.root", str(tmp_path)]) == 2
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


def test_a_joined_cluster_says_nothing_of_its_own_accord(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as "(raylet) A worker died", in colours, which Ray's driver prints from a thread that `init` starts."""
    import ray

    listeners: list[object] = []
    monkeypatch.setattr(ray._private.worker, "listen_error_messages", before := object())
    monkeypatch.setattr(ray, "init", lambda **options: listeners.append(ray._private.worker.listen_error_messages))
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 1.0})
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with cluster.ray_cluster(ClusterConfig(num_workers=1, address="auto"), num_cpus=1):
        assert listeners != [before]
        assert listeners[0](None, None) is None  # type: ignore[operator]


def test_the_processes_of_a_joined_cluster_know_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among several clusters on the head node, the one that frees stopped trials' resources has to find this one."""
    import ray

    known: list[object] = []
    monkeypatch.setattr(ray, "init", lambda **options: known.append(options["runtime_env"]))
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 64.0, "GPU": 8.0})
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(cluster, "_check_reachable", lambda address: None)
    for address in ("10.0.0.1:6379", "auto", "ray://10.0.0.1:10001"):  # Ray itself finds the last two
        with cluster.ray_cluster(ClusterConfig(num_workers=8, address=address), num_cpus=8):
            pass
    assert known == [{"env_vars": {"RAY_ADDRESS": "10.0.0.1:6379"}}, None, None]
    monkeypatch.setenv("STS_IMPORT", "mine")
    with cluster.ray_cluster(ClusterConfig(num_workers=8, address="auto"), num_cpus=8):
        pass
    assert known[-1] == {"env_vars": {"STS_IMPORT": "mine"}}
