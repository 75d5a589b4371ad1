"""A study from beginning to end: its pilot and plan, the missing runs, the times of training steps, the report."""

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from sts_core.files import write_atomically
from sts_pipelines.config.plain import to_dict
from sts_pipelines.errors import UsageError
from sts_pipelines.study.plan import Study, StudyFolders
from sts_pipelines.study.process_pool import measure_missing
from sts_pipelines.study.records import git_revision, read_records

Part = Literal["pilot", "study", "report"]


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A study and its pilot."""

    study: Study
    pilot: Study
    timed: bool = False
    """Whether training steps are timed as well."""


def planned(name: str, *, cifar10: Path | None, work: Path) -> Planned:
    """The study small or medium; medium needs CIFAR-10 as an npz file."""
    if name == "small":
        from sts_pipelines.study import small

        if cifar10 is not None:
            raise UsageError("--cifar10 is for the study medium: small uses digits alone")
        return Planned(study=small.small_study(), pilot=small.small_study(small.PILOT_SEEDS), timed=True)
    from sts_pipelines.study import medium

    if cifar10 is None:
        raise UsageError("the study medium needs --cifar10 FILE")
    images = medium.cifar_part(cifar10, work)
    return Planned(study=medium.medium_study(images), pilot=medium.pilot_study(images))


def conduct(
    name: str, folders: StudyFolders, *, cifar10: Path | None, processes: int, timing: bool, part: Part
) -> None:
    """Do what is missing of a part and write its document anew."""
    if processes < 1:
        raise UsageError(f"--processes must be at least 1, got {processes}: give the number of cores to use")
    if cifar10 is not None and not cifar10.is_file():
        raise UsageError(f"--cifar10 needs an npz file, and {cifar10} is not a file")
    plan = planned(name, cifar10=cifar10, work=folders.work)
    if part == "pilot":
        make_plan(plan, folders, processes=processes)
        return
    if part == "study":
        write_config(plan.study, folders)
        measure_missing(plan.study, folders, processes=processes)
        if timing and plan.timed:
            measure_times(folders.output / "timing.json")
    report(plan.study, folders)


def make_plan(plan: Planned, folders: StudyFolders, *, processes: int) -> None:
    """pilot.jsonl, and plan.md from it, which nothing writes again."""
    from sts_pipelines.study.planning import write_plan

    if (folders.output / "plan.md").exists():
        raise UsageError(f"{folders.output / 'plan.md'} exists, and a plan is not changed after the fact")
    pilot = replace(folders, file="pilot.jsonl")
    measure_missing(plan.pilot, pilot, processes=processes)
    print(write_plan(plan.study, read_records(pilot.records), folders.output))


def report(study: Study, folders: StudyFolders) -> None:
    """Tables, verdicts and figures of whatever has been measured so far."""
    from sts_pipelines.study.pages.report import write_study_report

    records = read_records(folders.records)
    if not records:
        raise UsageError(f"{folders.output} has no results yet: run the study without --report-only first")
    print(write_study_report(study, records, folders.output))


def write_config(study: Study, folders: StudyFolders) -> None:
    """config.json: one complete config per experiment; runs differ from it in smoothing and seed."""
    experiments: dict[str, Any] = {}
    for run in study.runs:
        plain = to_dict(run.training)
        plain["data"]["root"] = None  # where the images are is no part of what was measured
        entry = experiments.setdefault(run.experiment, {"teachers": {}, "seeds": [], "training": plain})
        entry["teachers"][run.teacher] = to_dict(run.training.smoothing)
        if run.seed not in entry["seeds"]:
            entry["seeds"].append(run.seed)
    images = study.runs[0].data_digest
    content = {"study": study.name, "revision": git_revision(), "images": images, "experiments": experiments}
    write_atomically(folders.output / "config.json", json.dumps(content, indent=1) + "\n")


def measure_times(path: Path) -> None:
    """timing.json, a network at a time; those that are in it already stay."""
    from sts_pipelines.study.timing import NETWORKS, time_network

    times: list[dict[str, Any]] = json.loads(path.read_text()) if path.is_file() else []
    for network in NETWORKS:
        if all(entry["network"] != network.label for entry in times):
            print(f"timing training steps of {network.label}", file=sys.stderr)
            times.append(time_network(network))
            write_atomically(path, json.dumps(times) + "\n")
