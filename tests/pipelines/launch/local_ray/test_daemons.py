"""The processes of a local cluster, played by others: their end is noticed, and they end with their command."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sts_pipelines.errors import ClusterError
from sts_pipelines.launch.local_ray import daemons, reaper
from tests import processes

WAIT = "import time; time.sleep(600)"


@pytest.fixture
def daemon() -> Iterator[processes.Process]:
    with processes.Process([sys.executable, "-c", WAIT]) as process:
        yield process


@pytest.mark.parametrize(
    ("name", "called"), [("raylet", "raylet (or an agent of it)"), ("gcs_server", "control service")]
)
def test_the_end_of_a_process_that_ray_needs_ends_what_waits_for_it_with_a_sentence(
    name: str, called: str, daemon: processes.Process
) -> None:
    with pytest.raises(ClusterError) as caught, daemons.watched({name: daemon}):
        _kill_and_wait(daemon)
    assert str(caught.value) == f"Ray's {called} was killed or crashed: rerun the same command to resume"


def _kill_and_wait(daemon: processes.Process) -> None:
    daemon.kill()
    time.sleep(60)


def test_a_process_that_ray_can_do_without_may_end(daemon: processes.Process) -> None:
    with daemons.watched({"dashboard": daemon}):
        daemon.kill()
        time.sleep(2)
    assert daemon.poll() is not None


def test_an_error_of_the_body_stays_what_it_is(daemon: processes.Process) -> None:
    with pytest.raises(KeyError), daemons.watched({"raylet": daemon}):
        raise KeyError


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_what_writes_into_a_session_ends_with_a_command_that_is_killed(tmp_path: Path) -> None:
    script = f"""
import subprocess, sys, time
from pathlib import Path
from sts_pipelines.launch.local_ray.daemons import reaped
with reaped(Path(sys.argv[1])):
    with open(sys.argv[1] + "/worker.out", "w") as log:
        worker = subprocess.Popen([sys.executable, "-c", {WAIT!r}], stdout=log, start_new_session=True)
    Path(sys.argv[1] + "/ready").write_text(str(worker.pid))
    time.sleep(600)
"""
    session = tmp_path / "session"
    session.mkdir()
    (tmp_path / "log").touch()
    with (
        (tmp_path / "log").open() as read,
        processes.Process([sys.executable, "-c", WAIT], stdin=read) as reader,
        processes.Process([sys.executable, "-c", script, session]) as command,
    ):
        processes.wait_until(lambda: (session / "ready").exists() and (session / "ready").read_text() != "", command)
        worker = int((session / "ready").read_text())
        assert list(reaper.processes_of(str(session))) == [worker]
        command.kill()
        processes.wait_until(lambda: not processes.is_running(worker), reader, seconds=60)
        assert reader.poll() is None


def test_a_command_outlives_its_cluster(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w"), daemons.reaped(tmp_path):
        assert list(reaper.processes_of(str(tmp_path))) == [os.getpid()]
    assert list(reaper.processes_of(str(tmp_path))) == []


@pytest.mark.slow
@pytest.mark.ray
def test_a_run_whose_raylet_is_killed_ends_in_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sts_pipelines", "run", "byol-digits-sts", "--cluster.num-workers", "1"]
    command += ["--steps", "100000", "--log-every-steps", "1", "--cluster.storage-path", str(tmp_path)]
    with processes.Process(command, stdout=processes.DEVNULL, stderr=processes.PIPE, text=True) as run:
        processes.wait_until(lambda: any(tmp_path.glob("*/metrics.jsonl")), run)
        below = processes.descendants(run.pid)
        processes.kill(next(pid for pid, words in below.items() if "raylet/raylet" in words))
        _, errors = processes.finish(run, seconds=60)
        assert run.returncode == 2
        last = errors.splitlines()[-1]
        assert last == "sts: Ray's raylet (or an agent of it) was killed or crashed: rerun the same command to resume"
        deadline = time.monotonic() + 30
        while (left := [pid for pid in below if processes.is_running(pid)]) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not [below[pid] for pid in left]
