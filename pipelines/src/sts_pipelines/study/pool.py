"""Measuring the runs that are missing, in several single-threaded processes, with a line of progress for each."""

import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import TextIO

from sts_pipelines.study.plan import Record, Study, StudyFolders, StudyRun
from sts_pipelines.study.records import append_record, git_revision, read_records


def measure_missing(study: Study, folders: StudyFolders, *, processes: int = 1, stream: TextIO | None = None) -> None:
    """Measure what results.jsonl lacks. Stopped at any moment, the same call later does only the rest."""
    missing = study.missing(read_records(folders.records))
    progress = Progress(total=len(study.runs), missing=len(missing), stream=stream or sys.stderr)
    if not missing:
        return
    revision = git_revision()
    _prepare(missing, folders.work)
    os.environ["OMP_NUM_THREADS"] = "1"  # the processes inherit it; more threads than cores make all of them slower
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=processes, mp_context=context, initializer=_use_one_thread) as pool:
        tasks = [pool.submit(measure_and_append, run, folders.work, folders.records, revision) for run in missing]
        try:
            for task in as_completed(tasks):
                progress.finished(task.result())
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def measure_and_append(run: StudyRun, work: Path, records: Path, revision: str) -> Record:
    """What a process does for a run; the record is on the disk before anybody is told."""
    from sts_pipelines.study.measure import measure

    record = measure(run, work=work, revision=revision)
    append_record(records, record)
    return record


class Progress:
    """n of N, what was measured, and the time left if the rest takes as long as what is done."""

    def __init__(self, *, total: int, missing: int, stream: TextIO) -> None:
        self.missing, self.stream = missing, stream
        self.done, self.started = 0, time.monotonic()
        self._say(f"study: {total} runs, {missing} to measure")

    def finished(self, record: Record) -> None:
        self.done += 1
        left = (time.monotonic() - self.started) / self.done * (self.missing - self.done)
        shown = next((f"{name} {value:.1f}" for name, value in record.values.items() if "teacher" in name), "")
        name = f"{record.experiment} {record.teacher} seed {record.seed}"
        outcome = record.failed or shown
        self._say(
            f"{self.done} of {self.missing}  {name}  {outcome}  {record.cpu_seconds:.0f} s  {_minutes(left)} left"
        )

    def _say(self, line: str) -> None:
        self.stream.write(line + "\n")
        self.stream.flush()


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.0f} s"


def _use_one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _prepare(runs: Sequence[StudyRun], work: Path) -> None:
    """Make the corrupted images before the processes need them, each of which would make them all."""
    from sts_eval import cells_of
    from sts_pipelines.study.measure import corruption_source

    for run in {(run.training.data.dataset, run.data_digest): run for run in runs if run.corruptions}.values():
        source = corruption_source(run, work)
        for cell in cells_of(source):
            source.cell(*cell)
