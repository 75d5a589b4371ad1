"""One pipeline and the folder that its run lives in."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from sts_core import Network, StateError
from sts_core.files import is_uri, locked, write_atomically
from sts_methods import CheckpointStore, verify_backbone
from sts_pipelines.config.kinds import plain_of
from sts_pipelines.config.pipeline import ComparisonConfig, PipelineConfig
from sts_pipelines.config.plain import to_dict
from sts_pipelines.config.reading import from_dict
from sts_pipelines.config.run_folder import CONTROL, describe_run
from sts_pipelines.config.yaml_text import write_yaml
from sts_pipelines.errors import UsageError
from sts_pipelines.evaluation.settings import is_evaluated


@dataclass(frozen=True, kw_only=True)
class Job:
    """One pipeline and the folder that its run lives in."""

    label: str
    pipeline: PipelineConfig
    folder: Path
    bank_folder: Path | None = None
    """Where the results of the bank's teachers go, one folder for each, if there is a bank."""
    train: bool = True
    """False only evaluates what an earlier run has left."""

    def to_plain(self) -> dict[str, Any]:
        """Plain values, which is all that crosses to the workers."""
        bank = None if self.bank_folder is None else str(self.bank_folder)
        plain = {"label": self.label, "pipeline": to_dict(self.pipeline), "folder": str(self.folder)}
        return plain | {"bank_folder": bank, "train": self.train}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Job":
        return cls(
            label=plain["label"],
            pipeline=from_dict(PipelineConfig, plain["pipeline"]),
            folder=Path(plain["folder"]),
            bank_folder=None if plain["bank_folder"] is None else Path(plain["bank_folder"]),
            train=plain["train"],
        )


def is_complete(job: Job) -> bool:
    """Whether the run in this folder was trained to its end and holds every result that is asked for.

    The folder's name is a digest of all that decides the weights, so saved networks are those of this config, unless
    somebody has taken their checkpoint away to train the last steps again. Damaged ones are saved again from it.
    """
    if job.bank_folder is not None or is_uri(job.pipeline.cluster.storage_path):
        return False
    try:
        steps = {verify_backbone(job.folder / network)["step"] for network in get_args(Network)}
    except StateError:
        return False
    newest = CheckpointStore(job.folder / "checkpoints").newest_intact()
    return (newest is None or steps == {newest}) and is_evaluated(job.folder, job.pipeline)


def write_config(job: Job) -> None:
    """Leave the resolved config, and what reports are told of it, in the run folder, atomically.

    An evaluation leaves those that are there.
    """
    if not job.train:
        return
    try:
        write_atomically(job.folder / "config.yaml", write_yaml(plain_of(job.pipeline)))
        told = describe_run(job.pipeline) | {"control": CONTROL}
        write_atomically(job.folder / "training.json", json.dumps(told, indent=1) + "\n")
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"cannot write to {job.folder} ({reason}): free it, or set cluster.storage-path") from error


@contextlib.contextmanager
def run_lock(folder: Path, *, patience_seconds: float = 60.0) -> Iterator[None]:
    """Only one group of workers writes to a run folder; those of a killed driver need some seconds to vanish."""
    with contextlib.ExitStack() as lock:
        try:
            lock.enter_context(locked(folder / ".lock", patience_seconds=patience_seconds))
        except TimeoutError:
            message = f"{folder} is being written to by another run: wait for it, or stop it first"
            raise UsageError(message) from None
        yield


def jobs_of(config: PipelineConfig | ComparisonConfig) -> list[Job]:
    """A pipeline is one job in its own folder; a comparison has one job, in a folder inside its own, per variant."""
    if isinstance(config, PipelineConfig):
        return [Job(label=config.name, pipeline=config, folder=config.folder)]
    return [
        Job(label=label, pipeline=pipeline, folder=config.folder / label)
        for label, pipeline in config.pipelines.items()
    ]
