"""The files for clusters, as far as they can be tried without one."""

import os
import re
import shlex
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from sts_pipelines.cli.main import build_parser, split_overrides
from sts_pipelines.cli.resolve import resolve
from tests import processes

DEPLOY = Path(__file__).parents[3] / "pipelines" / "deploy"

LOG = 'echo "{name} $*" >> "$LOG"\n'
COMMANDS = {
    "scontrol": LOG.format(name="scontrol") + 'if [ "$1" = show ]; then printf "n1\\nn2\\n"; fi\n',
    "srun": LOG.format(name="srun")
    + 'while [ "$1" != bash ] && [ "$1" != sts ]; do\n  [ "$1" = --overlap ] || shift\n  shift\ndone\nexec "$@"\n',
    "ray": LOG.format(name="ray")
    + 'if [ "$1" = start ]; then exec sleep 600; fi\ngrep -q "ray start .*--head" "$LOG"\n',
    "sts": LOG.format(name="sts") + 'trap "echo saved >> $LOG" USR1\n[ -z "${STS_WAITS:-}" ] && exit 0\n'
    'trap "exit 143" TERM\nwhile true; do sleep 0.2; done\n',
    "sleep": 'exec /bin/sleep "$([ "$1" = 60 ] && echo 1 || echo "$1")"\n',
}


@pytest.fixture
def slurm(tmp_path: Path) -> dict[str, str]:
    """An environment like that of a job on two nodes with eight GPUs, with stand-ins that note how they are called."""
    for name, text in COMMANDS.items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/usr/bin/env bash\n{text}")
        path.chmod(0o755)
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2"}
    job |= {"SLURM_CPUS_PER_TASK": "64", "SLURM_GPUS_ON_NODE": "8", "LOG": str(tmp_path / "log")}
    return os.environ | job | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}


def test_slurm_starts_a_ray_node_on_each_and_the_pipeline_on_all_their_gpus(
    slurm: dict[str, str], tmp_path: Path
) -> None:
    done = processes.run([DEPLOY / "slurm.sh", "run", "quickstart", "--seed", "1"], cwd=tmp_path, env=slurm)
    lines = (tmp_path / "log").read_text().splitlines()
    assert done.returncode == 0, done.stderr
    assert "ray start --block --num-cpus 64 --num-gpus 8 --head --node-ip-address n1 --port 20007" in lines
    (started,) = [line for line in lines if line.startswith("sts ")]
    wanted = "--cluster.address n1:20007 --cluster.num-workers 16 --cluster.use-gpu true"
    assert started == f"sts run quickstart --seed 1 {wanted}"
    assert not [line for line in lines if "requeue" in line]


def test_a_job_that_runs_out_of_time_saves_stops_and_is_queued_again(slurm: dict[str, str], tmp_path: Path) -> None:
    job = processes.Process([DEPLOY / "slurm.sh", "run", "quickstart"], cwd=tmp_path, env=slurm | {"STS_WAITS": "1"})
    log = tmp_path / "log"
    processes.wait_until(lambda: log.exists() and "\nsts run" in log.read_text(), job)
    time.sleep(1)  # for the stand-in's traps
    job.send_signal(signal.SIGUSR1)
    processes.finish(job)
    lines = log.read_text().splitlines()
    assert job.returncode == 143
    assert lines[-1] == "scontrol requeue 7"
    assert "saved" in lines


def test_slurm_without_a_command_says_how_it_is_used(slurm: dict[str, str], tmp_path: Path) -> None:
    done = processes.run([DEPLOY / "slurm.sh"], cwd=tmp_path, env=slurm)
    assert (done.returncode, done.stderr[:6]) == (2, "usage:")


@pytest.mark.parametrize("name", ["kuberay.yaml", "ray-up.yaml", "slurm.sh", "Containerfile"])
def test_every_sts_command_of_the_files_is_understood(name: str) -> None:
    text = (DEPLOY / name).read_text().replace(">-\n    sts", "sts").replace("\n    --", " --")
    commands = re.findall(r"(?:sts|slurm\.sh) (run [^'\n]+)", text.replace("NAME", "byol-imagenet-200ep-sts"))
    commands = [command for command in commands if "|" not in command]
    assert commands
    for command in commands:
        words = shlex.split(command)
        own, overrides = split_overrides(words[1:], build_parser()[1]["run"])
        assert resolve(own[0], overrides) is not None


@pytest.mark.parametrize("name", ["kuberay.yaml", "ray-up.yaml"])
def test_the_yaml_files_give_workers_room_in_shared_memory(name: str) -> None:
    content: dict[str, Any] = yaml.safe_load((DEPLOY / name).read_text())
    assert "shm" in str(content)
    assert content.get("kind", "RayJob") == "RayJob"


def test_the_container_installs_every_package_and_does_not_run_as_root() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    steps = [line.split()[0] for line in text.splitlines() if re.match(r"[A-Z]+ ", line)]
    assert steps == ["FROM", "RUN", "WORKDIR", "COPY", "COPY", "RUN", "USER", "ENTRYPOINT", "CMD"]
    assert all(f"/src/{part}" in text for part in ("packages/sts-core", "packages/sts-methods", "packages/sts-eval"))
