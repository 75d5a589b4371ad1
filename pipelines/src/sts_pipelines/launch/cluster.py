"""Joining a Ray cluster, or starting a small, quiet one of our own that is gone when the command ends."""

import atexit
import contextlib
import math
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from sts_core import StsError
from sts_pipelines import plugins
from sts_pipelines.config.cluster import ClusterConfig
from sts_pipelines.errors import ClusterError, RunError, UsageError, WorkersError, first_line
from sts_pipelines.launch.local_ray.daemons import reaped, watched
from sts_pipelines.launch.local_ray.session import keep_logs, session_folder

# Tune's trial actor only waits for its workers, but Tune refuses to start one that asks for nothing.
TRIAL_CPUS = 0.01
_OBJECT_STORE_BYTES = 128 << 20  # the data goes through torch loaders, not through Ray's object store

_SECONDS_TO_ANSWER = 10.0
_ATTEMPTS = 3  # Ray gives a cluster 30 seconds to start, which a busy machine may not manage at first


def prepare_environment(*, local: bool) -> None:
    """Settings that Ray reads when it is imported; whatever the user has set stays."""
    settings = {
        "RAY_USAGE_STATS_ENABLED": "0",
        # `uv run` would make Ray zip the repository and build a new environment for every session.
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        # Workers keep the working directory, so relative data paths mean the same everywhere.
        "RAY_CHDIR_TO_TRIAL_DIR": "0",
        # The older console of Tune is the one that can be silenced; sweeps print lines of their own.
        "RAY_AIR_NEW_OUTPUT": "0",
        # Tune would answer Ctrl-C by ending as if all had been done, and Ray SIGTERM by aborting with a stack.
        "TUNE_DISABLE_SIGINT_HANDLER": "1",
        "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1",
        "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": "300",  # a worker that is stopped, in evaluations too; 600 otherwise
    }
    if local:
        settings |= {
            "RAY_AUTH_MODE": "token",  # otherwise Ray writes a token into the home directory
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # a misnomer: 0 binds the cluster to 127.0.0.1 on Linux
            "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
            "RAY_worker_niceness": "0",  # 15 by default: starved on a shared machine
            "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
            # An idle process for every core, which Train's actors, having settings of their own, would not take.
            "RAY_prestart_worker_first_driver": "0",
            # Ray would kill our workers when other programs fill the machine's memory; that is the kernel's business.
            "RAY_memory_monitor_refresh_ms": "0",
            "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # also how fast a lost worker is noticed
        }
    for name, value in settings.items():
        os.environ.setdefault(name, value)


@contextlib.contextmanager
def ray_cluster(config: ClusterConfig, *, num_cpus: float, dashboard: bool = False) -> Iterator[None]:
    """A connection to the cluster at `config.address`, or a local cluster with room for `num_cpus` logical CPUs.

    A connection that exists already is used and left open. Logs of a local cluster stay when the body fails.
    Ray's `dashboard` costs ten processes and also serves the State API, without which Tune's stopped trials never
    free their resources; it is there whenever `config` names a port for it.
    """
    prepare_environment(local=config.address is None)
    import ray

    if ray.is_initialized():
        yield
    elif config.address is None:
        dashboard = dashboard or config.dashboard_port is not None
        with _local_cluster(config, num_cpus=num_cpus, dashboard=dashboard), _plain_interrupts():
            yield
    else:
        with _own_handler(signal.SIGTERM):
            _connect(config)
        try:
            with _plain_interrupts():
                yield
        finally:
            ray.shutdown()


@contextlib.contextmanager
def _plain_interrupts() -> Iterator[None]:
    """Ray Train answers Ctrl-C with sys.exit, and leaves its handler behind: make it a KeyboardInterrupt again."""
    with _own_handler(signal.SIGINT):
        try:
            yield
        except SystemExit as error:
            raise KeyboardInterrupt from error


@contextlib.contextmanager
def _own_handler(number: int) -> Iterator[None]:
    """Put back the handler of a signal that the body takes over."""
    handler = signal.getsignal(number)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(number, handler)


def local_resources() -> dict[str, float]:
    """What this machine has to offer to workers."""
    import torch

    return {"CPU": float(os.cpu_count() or 1), "GPU": float(torch.cuda.device_count())}


def _connect(config: ClusterConfig) -> None:
    """Join the cluster at `config.address`; one that is too small may grow, so the user is told what is waited for."""
    import ray

    address = str(config.address)
    _check_reachable(address)
    # For the actor that frees a stopped trial's resources, on a head node with several clusters (see _only_cluster).
    named = {"RAY_ADDRESS": address} if address != "auto" and "://" not in address else {}
    imports = {plugins.VARIABLE: os.environ[plugins.VARIABLE]} if plugins.VARIABLE in os.environ else {}
    runtime_env = {"env_vars": named | imports} if named or imports else None
    _silence_driver()
    try:
        ray.init(address=config.address, runtime_env=runtime_env, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # no cluster there, or one of another version
        raise RunError(f"cannot join the Ray cluster at {config.address}: {first_line(error)}") from error
    workers = config.min_workers or config.num_workers
    needed = {"CPU": workers * config.cpus_per_worker, "GPU": float(workers * config.use_gpu)}
    found = ray.cluster_resources()
    for kind, amount in needed.items():
        if found.get(kind, 0.0) < amount:
            print(
                f"waiting: the workers need {amount:g} {kind}s, the cluster has {found.get(kind, 0.0):g} so far ...",
                file=sys.stderr,
                flush=True,
            )


def _check_reachable(address: str) -> None:
    """Ray would knock at an address where nobody answers for ten minutes and more."""
    host, _, port = address.rpartition("://")[2].partition("/")[0].rpartition(":")
    if not port.isdigit():  # "auto" and the like are Ray's own to resolve
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS_TO_ANSWER).close()
    except OSError as error:
        raise RunError(
            f"cannot join the Ray cluster at {address}: nothing answers there ({error}); start it (ray start --head), "
            "or leave cluster.address out for a cluster on this machine"
        ) from error


def check_gpus(config: ClusterConfig) -> None:
    """A cluster of one machine never grows: Ray would wait for missing GPUs for ever, without a word."""
    ray = sys.modules.get("ray")
    if config.address is not None or (ray is not None and ray.is_initialized()):
        return
    workers, found = config.min_workers or config.num_workers, local_resources()["GPU"]
    if config.use_gpu and found < workers:
        raise UsageError(
            f"{workers} workers need a GPU each, but this machine has {found:g}: lower cluster.num-workers, train on "
            "the CPU (--cluster.use-gpu false), or join a cluster (--cluster.address)"
        )


@contextlib.contextmanager
def _local_cluster(config: ClusterConfig, *, num_cpus: float, dashboard: bool) -> Iterator[None]:
    check_gpus(config)
    with session_folder() as session, reaped(session):
        print("starting Ray on this machine ...", file=sys.stderr, flush=True)
        try:
            started = _started(config, session, num_cpus=num_cpus, dashboard=dashboard)
            with started as node, watched(_daemons(node)):
                yield
        except Exception as error:
            if _is_told_in_full(error):
                raise
            print(f"sts: Ray's logs are in {keep_logs(session)} for a week", file=sys.stderr)
            raise


@contextlib.contextmanager
def _started(config: ClusterConfig, session: Path, *, num_cpus: float, dashboard: bool) -> Iterator[Any]:
    """Ray's node on this machine, for as long as the body runs."""
    import ray

    try:
        _start(config, session, num_cpus=num_cpus, dashboard=dashboard)
        yield ray._private.worker._global_node
    except ClusterError:  # what is left would be waited for
        atexit.unregister(ray.shutdown)
        raise
    except BaseException:
        ray.shutdown()
        raise
    else:
        ray.shutdown()


def _daemons(node: Any) -> dict[str, Any]:
    """Ray's own processes by kind."""
    return {kind: infos[0].process for kind, infos in node.all_processes.items() if infos} if node else {}


def _is_told_in_full(error: Exception) -> bool:
    """Whether the message says what is wrong, so that nobody needs Ray's logs."""
    return isinstance(error, StsError) and not isinstance(error, WorkersError | ClusterError)


def _start(config: ClusterConfig, session: Path, *, num_cpus: float, dashboard: bool = False) -> None:
    current = session / "ray" / "ray_current_cluster"
    current.parent.mkdir()
    try:
        with _only_cluster(session), _own_handler(signal.SIGTERM):
            connection = started_patiently(lambda: _init(config, session, num_cpus=num_cpus, dashboard=dashboard))
    except Exception as error:  # ports, sockets, memory: whatever keeps Ray from starting
        raise ClusterError(f"Ray could not be started on this machine: {first_line(error)}") from error
    current.write_text(connection.address_info["gcs_address"])
    seen = f"Ray's dashboard is at http://{connection.dashboard_url}; " if dashboard else ""
    print(f"{seen}starting workers ...", file=sys.stderr, flush=True)


def started_patiently(start: Callable[[], Any]) -> Any:
    """What `start` returns: a busy machine may not start Ray in its time at first."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return start()
        except Exception:  # Ray says too many things to tell a slow start from an impossible one
            print("Ray did not start in time; trying again ...", file=sys.stderr, flush=True)
    return start()


def _init(config: ClusterConfig, session: Path, *, num_cpus: float, dashboard: bool) -> Any:
    import ray

    _silence_driver()
    options: dict[str, Any] = {} if config.dashboard_port is None else {"dashboard_port": config.dashboard_port}
    with contextlib.nullcontext() if dashboard else _without_monitors():
        return ray.init(
            address="local",  # whatever RAY_ADDRESS says: joining a cluster is cluster.address
            num_cpus=max(os.cpu_count() or 1, math.ceil(num_cpus)),
            include_dashboard=dashboard,
            dashboard_host="127.0.0.1",
            object_store_memory=_OBJECT_STORE_BYTES,
            _temp_dir=str(session),
            log_to_driver=False,
            logging_level="ERROR",
            **options,
        )


@contextlib.contextmanager
def _without_monitors() -> Iterator[None]:
    """Two processes less: nobody shows the logs of workers, and the cluster of one machine does not grow.

    Ray's own command has flags for both, `ray.init` does not pass them on.
    """
    from ray._private import parameter

    before = parameter.RayParams
    parameter.RayParams = partial(before, include_log_monitor=False, no_monitor=True)
    try:
        yield
    finally:
        parameter.RayParams = before


def _silence_driver() -> None:
    """Take from Ray what its driver prints of its own accord, in yellow, also into files, wherever the cluster is.

    Train restarts lost workers, and what cannot be restarted is an error of ours.
    """
    import ray

    ray._private.worker.listen_error_messages = lambda worker, threads_stopped: None


@contextlib.contextmanager
def _only_cluster(session: Path) -> Iterator[None]:
    """Let processes that are started now look for their cluster in `session`, and not in what the machine shares.

    The actor that frees a stopped trial's resources asks "the" cluster of the machine about the trial. Where there is
    another one, or RAY_ADDRESS names one, it would ask there, and never free anything.
    """
    shared = {name: os.environ.pop(name, None) for name in ("RAY_ADDRESS", "RAY_TMPDIR")}
    os.environ["RAY_TMPDIR"] = str(session)
    try:
        yield
    finally:
        del os.environ["RAY_TMPDIR"]
        os.environ.update({name: value for name, value in shared.items() if value is not None})
