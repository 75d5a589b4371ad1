"""A Ray cluster that only claims its resources, in a process of its own: can a group of workers be placed on it?

python -m sts_pipelines.launch.placement '{"num_cpus": 96, "num_gpus": 8, "bundles": [{"CPU": 8, "GPU": 1}]}'
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from sts_pipelines.errors import RunError

_FITS, _DOES_NOT_FIT = 0, 3
_WAITS, _SECONDS = 12, 10
_REFUSALS = ("INFEASIBLE", "NO_RESOURCES")  # the cluster holds nothing else, so that what is missing will not come


def fits(request: Mapping[str, Any]) -> bool:
    """Ask Ray, in a process of its own since a process can be connected to one cluster only."""
    command = [sys.executable, "-m", "sts_pipelines.launch.placement", json.dumps(request)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode not in (_FITS, _DOES_NOT_FIT):
        reason = (finished.stderr.strip().splitlines() or ["no message"])[-1]
        raise RunError(f"Ray could not simulate the placement ({reason}): leave it out with --no-placement")
    return finished.returncode == _FITS


def _place(request: Mapping[str, Any]) -> int:
    import ray

    from sts_pipelines.launch.cluster import started_patiently
    from sts_pipelines.launch.local_ray.session import session_folder

    with session_folder() as session:
        options: dict[str, Any] = {
            "num_cpus": request["num_cpus"],
            "num_gpus": request["num_gpus"],
            "include_dashboard": False,
            "object_store_memory": 128 << 20,
            "_temp_dir": str(session),
            "log_to_driver": False,
            "logging_level": "ERROR",
        }
        started_patiently(lambda: ray.init(address="local", **options))
        try:
            return _FITS if _is_placed(ray.util.placement_group(request["bundles"], strategy="PACK")) else _DOES_NOT_FIT
        finally:
            ray.shutdown()


def _is_placed(group: Any) -> bool:
    """What Ray decides: that it has not placed a group yet says nothing on a busy machine."""
    from ray.util import placement_group_table

    for _ in range(_WAITS):
        if group.wait(timeout_seconds=_SECONDS):
            return True
        if placement_group_table(group)["stats"]["scheduling_state"] in _REFUSALS:
            return False
    raise TimeoutError(f"Ray has decided nothing in {_WAITS * _SECONDS} seconds")


if __name__ == "__main__":
    from sts_pipelines.launch.cluster import prepare_environment

    prepare_environment(local=True)
    sys.exit(_place(json.loads(sys.argv[1])))
