"""The report of a study, written from its records alone."""

from collections.abc import Mapping
from pathlib import Path

from sts_pipelines.study.plan import Record, Study


def write_study_report(study: Study, records: Mapping[str, Record], output: Path) -> str:
    """A line on how much of the study has been measured."""
    return f"{len(records)} of {len({run.key for run in study.runs})} runs of {study.name} are in {output}"
