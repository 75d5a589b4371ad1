"""Measured numbers by experiment, teacher and seed, and differences between teachers that share their seeds."""

import math
from collections.abc import Iterable, Mapping
from statistics import fmean

from sts_eval import Estimate, estimate
from sts_pipelines.study.plan import Comparison, Record, Study

BySeed = dict[int, float]
"""One number for each seed."""


DRIFTS = ("weights", "outputs")


class Outcomes:
    """The records of a study, found by what the study calls them: a run that two experiments share serves both."""

    def __init__(self, study: Study, records: Mapping[str, Record]) -> None:
        self._records: dict[tuple[str, str], dict[int, Record]] = {}
        for run in study.runs:
            if run.key in records:
                self._records.setdefault((run.experiment, run.teacher), {})[run.seed] = records[run.key]

    @classmethod
    def named(cls, records: Iterable[Record]) -> "Outcomes":
        """Found by the names in the records themselves: of a pilot, whose code may have been another."""
        outcomes = cls.__new__(cls)
        outcomes._records = {}
        for record in records:
            outcomes._records.setdefault((record.experiment, record.teacher), {})[record.seed] = record
        return outcomes

    def teachers(self, experiment: str) -> list[str]:
        """The teachers of an experiment that have been measured, in the study's order; a bank gives all of its own."""
        if (experiment, "bank") in self._records:
            first = next(iter(self._records[experiment, "bank"].values()))
            names = [name.removeprefix("top1/") for name in first.values if name.startswith("top1/")]
            return [name for name in names if name not in ("teacher", "student")]
        return [teacher for name, teacher in self._records if name == experiment]

    def values(self, experiment: str, teacher: str, measure: str) -> BySeed:
        """`measure` is evaluation/network, such as linear/teacher; of runs that failed there is no number."""
        records = self._records.get((experiment, teacher), {})
        if (experiment, "bank") in self._records:  # one student with many teachers
            records = self._records[experiment, "bank"]
            measure = "top1/student" if measure.endswith("/student") else f"top1/{teacher}"
        return {seed: record.values[measure] for seed, record in records.items() if measure in record.values}

    def drift(self, experiment: str, teacher: str, part: int) -> BySeed:
        """log10 of the mean over epochs of the drift in weights (1) or outputs (2).

        Not the geometric mean: as the learning rate falls to 0 all teachers come to rest, a collapsed one entirely, and
        it is the early epochs that the paper's figure shows.
        """
        found: BySeed = {}
        for seed, record in self._records.get((experiment, teacher), {}).items():
            if record.drift:
                found[seed] = math.log10(max(fmean(line[part] for line in record.drift), 1e-300))
        return found

    def drift_curve(self, experiment: str, teacher: str, part: int) -> list[tuple[float, float]]:
        """(epoch, drift), the geometric mean over seeds."""
        by_epoch: dict[float, list[float]] = {}
        for record in self._records.get((experiment, teacher), {}).values():
            for line in record.drift:
                by_epoch.setdefault(line[0], []).append(math.log10(max(line[part], 1e-300)))
        return [(epoch, 10 ** fmean(logs)) for epoch, logs in sorted(by_epoch.items())]

    def effect(self, comparison: Comparison) -> BySeed:
        """The difference that a comparison is about, for the seeds that have all of its arms."""
        sides = [
            [self._measured(*arm, comparison.measure) for arm in arms] for arms in (comparison.plus, comparison.minus)
        ]
        common = set.intersection(*(set(values) for side in sides for values in side))
        return {s: sum(v[s] for v in sides[0]) - sum(v[s] for v in sides[1]) for s in sorted(common)}

    def _measured(self, experiment: str, teacher: str, measure: str) -> BySeed:
        kind, _, part = measure.partition("/")
        if kind == "drift":
            return self.drift(experiment, teacher, DRIFTS.index(part) + 1)
        return self.values(experiment, teacher, measure)

    def num_failed(self, experiment: str, teacher: str) -> int:
        return sum(1 for record in self._records.get((experiment, teacher), {}).values() if record.failed)

    def cpu_hours(self) -> float:
        """CPU time of all records, shared ones counted once."""
        unique = {record.key: record.cpu_seconds for found in self._records.values() for record in found.values()}
        return sum(unique.values()) / 3600

    def revisions(self) -> list[str]:
        """Git revisions that measured, each once."""
        found = (record.revision for records in self._records.values() for record in records.values())
        return sorted({revision for revision in found if revision})


def minus(a: BySeed, b: BySeed) -> BySeed:
    """a - b for the seeds that both have."""
    return {seed: a[seed] - b[seed] for seed in a if seed in b}


def summary(values: BySeed) -> Estimate | None:
    """Mean and 95 % t-interval over seeds; None without any."""
    return estimate(list(values.values())) if values else None
