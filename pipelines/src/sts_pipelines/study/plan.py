"""What a study is, as values: runs, each one training with its measurements, and what they are grouped by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sts_methods import TrainingConfig
from sts_pipelines.config.plain import digest, outcome_relevant


@dataclass(frozen=True, kw_only=True)
class StudyRun:
    """One training of a study and what is measured afterwards."""

    experiment: str
    """What the run is compared within, such as byol-digits: runs of one experiment differ in teacher and seed only."""
    teacher: str
    """The name of its teacher, such as tma or sts."""
    training: TrainingConfig
    """The whole training; its bank, if any, is measured as well."""
    corruptions: int = 0
    """Number of test images that are also shown corrupted; 0 measures no robustness."""
    data_digest: str = ""
    """Digest of the images of a file: part of the key in place of the file's path."""

    @property
    def seed(self) -> int:
        return self.training.seed

    @property
    def key(self) -> str:
        """Digest of all that decides the outcome: a record under this key need not be measured again."""
        extra = {"corruptions": self.corruptions, "images": self.data_digest}
        return digest(outcome_relevant(self.training) | extra)


@dataclass(frozen=True, kw_only=True)
class Record:
    """The outcome of one run: a line of results.jsonl."""

    key: str
    experiment: str
    teacher: str
    seed: int
    smoothing: Mapping[str, Any]
    """m, p and granularity of the teacher that trained."""
    values: Mapping[str, float]
    """Percent correct by evaluation/network: linear/teacher, knn/student, top1/sts (a teacher of the bank), ..."""
    drift: Sequence[Sequence[float]] = field(default_factory=tuple)
    """(epoch, weights, outputs): mean squared change of the teacher since the epoch before."""
    cpu_seconds: float = 0.0
    """CPU time of training and evaluation."""
    revision: str = ""
    """Git revision of the code that measured it, with a plus sign where it had changes."""
    failed: str = ""
    """Why the training stopped, if it did: a loss that was not finite."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """A name, and its runs in the order in which they are measured."""

    name: str
    runs: Sequence[StudyRun]

    def missing(self, records: Mapping[str, Record]) -> list[StudyRun]:
        """The runs that no record covers, each once."""
        found: dict[str, StudyRun] = {}
        for run in self.runs:
            if run.key not in records:
                found.setdefault(run.key, run)
        return list(found.values())


@dataclass(frozen=True, kw_only=True)
class StudyFolders:
    """Where a study lives."""

    output: Path
    """Raw results, tables and figures: small enough to be committed."""
    work: Path
    """Run folders and corrupted images, which can be made again."""

    @property
    def records(self) -> Path:
        return self.output / "results.jsonl"
