"""Two machines made of namespaces lose each other for a while: python -m tests.pipelines.launch.namespaces.

As root, on Linux, with iproute2, in the folder of the repository. Each machine has a network, sockets and a /dev/shm of
its own, and one CPU; they share the disk, as a cluster its file system. A run has one worker on each. When it is on its
way the cable between them is taken away, and given back after so many seconds; a machine whose Ray has given up starts
it again, as Kubernetes would. At the end the weights are compared with those of the same run on a cable that stays.
Says what happened, line by line.
"""

import argparse
import contextlib
import json
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from sts_methods.runs.checkpoint import CheckpointStore
from tests import processes

HEAD, OTHER = "sts-one", "sts-two"
ADDRESSES = {HEAD: "10.77.0.1", OTHER: "10.77.0.2"}
CABLE = "cable0"  # its end has this name on both machines
PORT = 6379
BIN = Path(sys.executable).parent
PRIVATE = "mkdir -p /tmp/ray; mount -t tmpfs tmpfs /tmp/ray; mount -t tmpfs -o size=1g tmpfs /dev/shm; "
ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # what other programs fill is the kernel's business
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "GLOO_SOCKET_IFNAME": CABLE,
    "OMP_NUM_THREADS": "1",
}


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def ip(*words: str) -> None:
    done = processes.run(["ip", *words])
    if done.returncode:
        raise SystemExit(f"ip {' '.join(words)}: {done.stderr}")


@contextlib.contextmanager
def machines() -> Iterator[None]:
    """Two network namespaces and a cable; in the end whatever still runs in them is killed."""
    for name in ADDRESSES:
        ip("netns", "add", name)
    try:
        ip("link", "add", CABLE, "netns", HEAD, "type", "veth", "peer", "name", CABLE, "netns", OTHER)
        for name, address in ADDRESSES.items():
            ip("-n", name, "address", "add", f"{address}/24", "dev", CABLE)
            for device in ("lo", CABLE):
                ip("-n", name, "link", "set", device, "up")
        yield
    finally:
        for name in ADDRESSES:
            for pid in processes.run(["ip", "netns", "pids", name]).stdout.split():
                processes.kill(int(pid))
            ip("netns", "delete", name)


def on(name: str, command: Sequence[object], log: Path, *, mounts: str = PRIVATE) -> processes.Process:
    """A process on a machine, in a session of its own."""
    line = f"{mounts}exec {' '.join(map(str, command))}"
    words = ["ip", "netns", "exec", name, "unshare", "--mount", "sh", "-c", line]
    with log.open("ab") as file:
        return processes.Process(words, env=os.environ | ENVIRONMENT, stdout=file, stderr=file, start_new_session=True)


def start_ray(name: str, logs: Path) -> processes.Process:
    where = ["--head", "--port", PORT] if name == HEAD else ["--address", f"{ADDRESSES[HEAD]}:{PORT}"]
    options = ["--node-ip-address", ADDRESSES[name], "--num-cpus", 1, "--object-store-memory", 128 << 20, "--block"]
    dashboard = ["--include-dashboard", "false"] if name == HEAD else []
    return on(name, [BIN / "ray", "start", *where, *options, *dashboard], logs / f"{name}.log")


def start_run(storage: Path, steps: int, head: int, log: Path) -> processes.Process:
    """The run's driver, on the first machine."""
    flags = [
        "--steps",
        steps,
        "--checkpoint-every-steps",
        10,
        "--log-every-steps",
        1,
        "--evaluation.after-training",
        "[]",
    ]
    flags += ["--cluster.address", f"{ADDRESSES[HEAD]}:{PORT}", "--cluster.num-workers", 2]
    flags += ["--cluster.use-gpu", "false", "--cluster.storage-path", storage, "--tracking.tensorboard", "false"]
    command = [BIN / "sts", "run", "byol-digits-sts", *flags]
    words = ["nsenter", "--target", head, "--mount", "--net", "--", *command]  # beside Ray's sockets
    with log.open("ab") as file:
        return processes.Process(
            list(map(str, words)), env=os.environ | ENVIRONMENT, stdout=file, stderr=file, start_new_session=True
        )


def steps_of(storage: Path) -> list[int]:
    """The steps that a run has logged, in the order in which it did."""
    found = list(storage.glob("*/metrics.jsonl"))
    return [json.loads(line)["step"] for line in found[0].read_text().splitlines()] if found else []


def starts_of(storage: Path) -> float:
    """When the workers were started last."""
    plans = list(storage.glob("*/plan.json"))
    return float(json.loads(plans[0].read_text())["started"]) if plans else 0.0


def wait_for(reached: Callable[[], bool], keep: Callable[[], None], *, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not reached() and time.monotonic() < deadline:
        keep()
        time.sleep(0.5)
    return reached()


def weights(storage: Path) -> dict[str, torch.Tensor]:
    (folder,) = storage.glob("*/checkpoints")
    state = CheckpointStore(folder).latest()
    assert state is not None
    found: dict[str, torch.Tensor] = state["method"]
    return found


def train(storage: Path, folder: Path, *, steps: int, seconds: float | None) -> dict[str, torch.Tensor]:
    """The weights of a run whose cable is away for so many seconds, if any."""
    rays = {name: start_ray(name, folder) for name in (HEAD,)}
    time.sleep(20)
    rays[OTHER] = start_ray(OTHER, folder)
    run = start_run(storage, steps, rays[HEAD].pid, folder / f"{storage.name}.log")

    def keep() -> None:
        for name, ray in rays.items():
            if ray.poll() is not None and run.poll() is None:
                say(f"Ray on {name} has ended ({ray.returncode}): started again")
                rays[name] = start_ray(name, folder)

    wait_for(lambda: len(steps_of(storage)) >= 30 or run.poll() is not None, keep, seconds=900)
    if run.poll() is not None or len(steps_of(storage)) < 30:
        raise SystemExit(f"no 30 steps; see {folder}")
    if seconds is not None:
        before = starts_of(storage)
        say(f"the cable is away at step {steps_of(storage)[-1]}")
        ip("-n", OTHER, "link", "set", CABLE, "down")
        wait_for(lambda: False, keep, seconds=seconds)
        say(f"the cable is back; the last step was {steps_of(storage)[-1]}")
        ip("-n", OTHER, "link", "set", CABLE, "up")
        last, began = steps_of(storage)[-1], time.monotonic()
        wait_for(lambda: steps_of(storage)[-1] != last or run.poll() is not None, keep, seconds=900)
        restarted = "the workers were started again" if starts_of(storage) != before else "by the same workers"
        say(f"{time.monotonic() - began:.0f} s later step {steps_of(storage)[-1]}: {restarted}")
    wait_for(lambda: run.poll() is not None, keep, seconds=1800)
    say(f"{storage.name}: the run has ended with {run.poll()} after step {steps_of(storage)[-1]}")
    if run.poll():
        say("the same command again")
        run = start_run(storage, steps, rays[HEAD].pid, folder / f"{storage.name}.log")
        wait_for(lambda: run.poll() is not None, keep, seconds=1800)
        say(f"{storage.name}: the run has ended with {run.poll()} after step {steps_of(storage)[-1]}")
    for ray in rays.values():
        ray.kill()
    return weights(storage)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the cable is away")
    parser.add_argument("--steps", type=int, default=200, help="of the run")
    parser.add_argument("--storage", type=Path, help="a folder (default: a new one in /var/tmp)")
    arguments = parser.parse_args()
    folder = arguments.storage or Path(tempfile.mkdtemp(prefix="sts-", dir="/var/tmp"))
    found = {}
    for name, seconds in (("disturbed", arguments.seconds), ("calm", None)):
        with machines():
            found[name] = train(folder / name, folder, steps=arguments.steps, seconds=seconds)
    one, other = found["disturbed"], found["calm"]
    unequal = [name for name in other if not torch.equal(one[name], other[name])]
    say(f"of {len(other)} tensors {len(unequal)} differ from those of the calm run")
    if arguments.storage is None and not unequal:
        shutil.rmtree(folder)
    sys.exit(bool(unequal))


if __name__ == "__main__":
    main()
