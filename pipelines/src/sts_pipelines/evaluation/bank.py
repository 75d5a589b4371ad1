"""Measuring the teachers of a bank: each gets a folder of results of its own, as if it had been the run's teacher."""

from pathlib import Path

import torch

from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.evaluation.evaluator import evaluate_run
from sts_pipelines.evaluation.record import records_of
from sts_pipelines.evaluation.run import EvaluatedRun
from sts_pipelines.evaluation.settings import is_done, settings_of, write_entries


def evaluate_bank(folder: Path, pipeline: PipelineConfig, results: Path, *, device: torch.device) -> None:
    """Evaluate every teacher of the bank of the run in `folder` into `results`/<name>; all ranks take part."""
    names = list(pipeline.training.bank)
    for record in records_of(pipeline):
        settings = settings_of(record.name, pipeline)
        missing = [name for name in names if not is_done(results / name, record.name, "teacher", settings)]
        if record.measure_bank is not None and missing:
            run = EvaluatedRun(folder, pipeline, device)
            for name, entries in record.measure_bank(run, missing).items():
                write_entries(run, results / name, entries)
    for name in names:
        evaluate_run(folder, pipeline, device=device, teacher=name, results=results / name)
