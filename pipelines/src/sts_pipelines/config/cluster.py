"""Where a pipeline runs."""

from dataclasses import dataclass

from sts_pipelines.errors import require

MOST_CPUS = 1024
"""More than a machine has: Ray would wait for one for ever."""


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """Where the workers run and how much they may fail."""

    num_workers: int = 8
    """Ray Train workers, one process each; 0 trains in this process without Ray."""
    min_workers: int | None = None
    """Elastic training: the run may shrink to so many workers; the global batch stays the same."""
    use_gpu: bool = True
    """One GPU per worker (NCCL); without it gloo on the CPU."""
    cpus_per_worker: float = 1.0
    """CPUs that Ray reserves for a worker; may be a fraction."""
    max_failures: int = 3
    """Restarts of the worker group from the newest checkpoint before the run is given up; -1 is without end."""
    stuck_after_seconds: float | None = 300.0
    """Restart workers that take no step for so long and for 20 times the usual, as a stopped process or a disk that
    hangs would have it; the first step has four times as long. Without it they are waited for."""
    storage_path: str = "runs"
    """Where run folders are made: a path all workers see, or a URI that Ray can write to (s3://, gs://)."""
    address: str | None = None
    """Ray cluster to join (auto, or ray://host:port); without it a local one is started for this run."""
    dashboard_port: int | None = None
    """Port of the local cluster's dashboard on 127.0.0.1; without it only a sweep has one, as Tune needs it, at the
    first free port from 8265 on."""

    def __post_init__(self) -> None:
        require(
            self.num_workers >= 0,
            f"num_workers must not be negative, got {self.num_workers}: 0 trains in process",
            "num_workers",
        )
        require(
            0 < self.cpus_per_worker <= MOST_CPUS,
            f"cpus_per_worker must be positive and at most {MOST_CPUS:,}, got {self.cpus_per_worker:g}",
            "cpus_per_worker",
        )
        require(
            self.max_failures >= -1,
            f"max_failures must be -1 or more, got {self.max_failures}: -1 never gives up",
            "max_failures",
        )
        require(
            self.stuck_after_seconds is None or self.stuck_after_seconds >= 10,
            f"stuck_after_seconds must be at least 10, got {self.stuck_after_seconds}: null waits for ever",
            "stuck_after_seconds",
        )
        if self.min_workers is not None:
            fits = 1 <= self.min_workers <= self.num_workers
            require(
                fits,
                f"min_workers must be from 1 to num_workers={self.num_workers}, got {self.min_workers}",
                "min_workers",
                "num_workers",
            )
