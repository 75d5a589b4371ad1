"""Measuring the runs that are missing, in several single-threaded processes, with a line of progress for each."""

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
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
    os.environ["OMP_NUM_THREADS"] = "1"  # the processes inherit it; more threads than cores make all of them slower
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        max_workers=processes, mp_context=context, initializer=_start_process, initargs=(os.getpid(),)
    ) as pool:
        tasks = []
        for run, corruptions in with_corruptions_to_make(missing):
            for corruption in corruptions:
                pool.submit(make_corrupted, run, corruption, folders.work)
            tasks.append(pool.submit(measure_and_append, run, folders.work, folders.records, revision))
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


def _start_process(parent: int) -> None:
    """One thread for torch; and an end when the parent is killed, which the executor's processes would outlive."""
    import torch

    torch.set_num_threads(1)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def with_corruptions_to_make(runs: Sequence[StudyRun]) -> Iterator[tuple[StudyRun, Sequence[str]]]:
    """Each run with the corruptions whose images must be made before it: all of them for the first that needs any."""
    from sts_eval import MAIN_CORRUPTIONS

    made: set[tuple[str, str]] = set()
    for run in runs:
        images = (run.training.data.dataset, run.data_digest)
        yield run, MAIN_CORRUPTIONS if run.corruptions and images not in made else ()
        made |= {images} if run.corruptions else set()


def make_corrupted(run: StudyRun, corruption: str, work: Path) -> None:
    """Leave the corrupted images in the cache; what goes wrong here goes wrong again, and is told, in the run."""
    from sts_pipelines.study.measure import corruption_source

    source = corruption_source(run, work)
    for severity in source.severities:
        source.cell(corruption, severity)
