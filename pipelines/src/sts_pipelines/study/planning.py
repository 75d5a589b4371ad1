"""The plan of a study, written from its code and its pilot before the first run: plan.md."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

from sts_core.files import write_atomically
from sts_pipelines.study import verdicts
from sts_pipelines.study.outcomes import Outcomes
from sts_pipelines.study.pages import tables
from sts_pipelines.study.plan import Arm, Record, Study
from sts_pipelines.study.power import POWER, Need, needs
from sts_pipelines.study.records import git_revision


def write_plan(study: Study, records: Mapping[str, Record], output: Path) -> str:
    """plan.md in `output` from the records of a pilot; a sentence on what was written."""
    pilot = Outcomes.named(records.values())
    found = needs(study, pilot)
    path = output / "plan.md"
    sections = [_head(study, records), study.settings, _rule(), _power(found)]
    write_atomically(path, "\n\n".join(sections) + "\n")
    return f"wrote {path}: {len(found)} comparisons, {len(study.runs)} runs"


def seconds_by_arm(study: Study, records: Mapping[str, Record]) -> dict[Arm, float]:
    """CPU seconds of a run of each arm, as in the records; arms without any take as long as the others on average."""
    taken: dict[Arm, list[float]] = {}
    for record in records.values():
        taken.setdefault((record.experiment, record.teacher), []).append(record.cpu_seconds)
    means = {arm: fmean(seconds) for arm, seconds in taken.items()}
    arms = {(run.experiment, run.teacher) for run in study.runs}
    return {arm: means.get(arm, fmean(means.values())) for arm in arms}


def _head(study: Study, records: Mapping[str, Record]) -> str:
    date = datetime.now(tz=UTC).date().isoformat()
    means = seconds_by_arm(study, records)
    measured = ", ".join(sorted({record.revision for record in records.values()}))
    total = sum(means[run.experiment, run.teacher] for run in study.runs) / 3600
    return f"""# Plan of the study `{study.name}`: {study.title}

Written on {date} at revision {git_revision() or "unknown"}, before the study's first run; it is not written again.
The pilot's seeds are {_listed(_seeds(records))} (`pilot.jsonl`, measured at {measured}), the study's
{_listed(study.seeds)}. Its {len(study.runs)} trainings take {total:.1f} CPU hours by the pilot's times, of
{study.budget_hours:g} that they may take."""


def _seeds(records: Mapping[str, Record]) -> tuple[int, ...]:
    return tuple(sorted({record.seed for record in records.values()}))


def _listed(seeds: tuple[int, ...]) -> str:
    return f"{seeds[0]} to {seeds[-1]}"


def _rule() -> str:
    return "## Verdicts\n\n" + (verdicts.__doc__ or "").partition("The rule. ")[2].strip()


def _power(found: list[Need]) -> str:
    enough = sum(need.power >= POWER for need in found)
    return f"""## Comparisons and their power

A comparison needs the seeds with which equal teachers are found equivalent, and teachers one margin apart different, in
{POWER * 100:.0f} of 100 studies, at the level of Holm's first step ({verdicts.LEVEL:g} / {len(found)}). The standard
deviation of a difference between seeds is the pilot's, pooled over the comparisons of one method and measure.
{enough} of {len(found)} comparisons have that power as planned. The others are decided only if their difference is
larger than the margin (*detectable*: found in 9 of 10 studies); else they cannot be told, because the budget forbids
more.

{tables.needs_table(found)}"""
