"""What a study is, as values: runs, each one training with its measurements, and the comparisons that they decide."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sts_eval import GeneratedCorruptions
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
    folds: int = 0
    """Parts of the cross-validated probe over all images; 0 trains it on one split and tests it on the other."""
    data_digest: str = ""
    """Digest of the images of a file: part of the key in place of the file's path."""

    @property
    def seed(self) -> int:
        return self.training.seed

    @property
    def key(self) -> str:
        """Digest of all that decides the outcome: a record under this key need not be measured again."""
        extra: dict[str, Any] = {"corruptions": self.corruptions, "images": self.data_digest, "folds": self.folds}
        if self.corruptions:
            extra["generator"] = GeneratedCorruptions.generator
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


Expected = Literal["greater", "comparable"]
Arm = tuple[str, str]
"""Experiment and teacher."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A prediction of the paper about the difference between two arms, or between two differences, seed by seed."""

    claim: str
    """What the paper says; comparisons of one claim share a figure."""
    paper: str
    """The paper's numbers, at its own scale."""
    setting: str
    """Where it is tested, in a reader's words."""
    difference: str
    """What is subtracted from what, in a reader's words."""
    plus: tuple[Arm, ...]
    """Arms that count positively: a positive effect is on the claim's side."""
    minus: tuple[Arm, ...]
    measure: str = "linear/teacher"
    """A value of the records, or drift/weights: log10 of the mean squared change from epoch to epoch."""
    expects: Expected = "greater"
    """Whether the claim is that the effect is positive, or that it is within the margin."""
    margin: float = 1.0
    """Effects of this size or less count as equal."""
    unit: str = "points"


@dataclass(frozen=True, kw_only=True)
class Study:
    """A name, its runs in the order in which they are measured, and the comparisons that they were planned for."""

    name: str
    title: str
    runs: Sequence[StudyRun]
    comparisons: Sequence[Comparison]
    settings: str
    """What was scaled down and why, for plan and report."""
    budget_hours: float
    """CPU hours that the study may take, which caps the number of seeds."""

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({run.seed for run in self.runs}))

    def num_seeds(self, comparison: Comparison) -> int:
        """Seeds that all arms of a comparison are planned with; an arm of a bank has the bank's."""
        planned: dict[Arm, set[int]] = {}
        for run in self.runs:
            for teacher in (run.teacher, *run.training.bank):
                planned.setdefault((run.experiment, teacher), set()).add(run.seed)
        return len(set.intersection(*(planned[arm] for arm in (*comparison.plus, *comparison.minus))))

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
    file: str = "results.jsonl"
    """Name of the records, one run a line."""

    @property
    def records(self) -> Path:
        return self.output / self.file
