"""A study from beginning to end: the missing runs, the times of training steps, the report."""

import json
import sys
from pathlib import Path
from typing import Any

from sts_core.files import write_atomically
from sts_pipelines.config.plain import to_dict
from sts_pipelines.errors import UsageError
from sts_pipelines.study.plan import Study, StudyFolders
from sts_pipelines.study.process_pool import measure_missing
from sts_pipelines.study.records import git_revision, read_records
from sts_pipelines.study.small import small_study


def conduct_small(
    folders: StudyFolders, *, cifar10: Path | None, processes: int, timing: bool, measure: bool = True
) -> None:
    """Do what is missing of the study `small` and write its report anew."""
    if processes < 1:
        raise UsageError(f"--processes must be at least 1, got {processes}: give the number of cores to use")
    if cifar10 is not None and not cifar10.is_file():
        raise UsageError(f"--cifar10 needs an npz file, and {cifar10} is not a file")
    study = small_study(cifar10=cifar10, work=folders.work)
    if measure:
        write_config(study, folders)
        measure_missing(study, folders, processes=processes)
        if timing:
            measure_times(folders.output / "timing.json")
    report(study, folders)


def report(study: Study, folders: StudyFolders) -> None:
    """Tables, verdicts and figures of whatever has been measured so far."""
    from sts_pipelines.study.report import write_study_report

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
    content = {"study": study.name, "revision": git_revision(), "experiments": experiments}
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
