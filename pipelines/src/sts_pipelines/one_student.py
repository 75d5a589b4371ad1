"""A whole grid of teachers from one training run, where the teacher does not influence training.

With student pseudo-labels FixMatch's teacher only watches: 32 teachers of one student, kept by a `TeacherBank`, are bit
for bit the teachers of 32 separate runs. Each cell gets a folder of its own with config and results, as if it had run.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sts_core import SmoothingConfig
from sts_eval.results import write_atomically
from sts_methods.checkpoint import CheckpointStore
from sts_pipelines.cells import Cell
from sts_pipelines.errors import TrialError
from sts_pipelines.launcher import Job, launch
from sts_pipelines.pipeline import SweepConfig
from sts_pipelines.schema import to_dict


def train_one_student(recipe: SweepConfig, cells: Sequence[Cell], folder: Path) -> None:
    """Train the student with all cells in its bank, and evaluate each of them into its own folder."""
    pipeline = recipe.pipeline
    bank = {cell.name: cell.smoothing for cell in cells}
    training = replace(pipeline.training, bank=bank)
    student = replace(pipeline, training=training)
    job = Job(label=pipeline.name, pipeline=student, folder=folder / student.run_name, bank_folder=folder)
    launch([job], name=student.run_name, folder=job.folder)
    _check_applied(job, bank)
    config = json.loads((job.folder / "config.json").read_text())
    for cell in cells:
        own = config | {"bank": {}, "smoothing": config["bank"][cell.name]}
        write_atomically(folder / cell.name / "config.json", json.dumps(own, indent=1) + "\n")


def _check_applied(job: Job, bank: Mapping[str, SmoothingConfig]) -> None:
    """Raise unless the bank that was trained, as its last checkpoint describes it, is the bank that was asked for."""
    state = CheckpointStore(job.folder / "checkpoints").latest()
    applied = {} if state is None else state["bank"]["config"]
    for name, sampled in bank.items():
        if applied.get(name) != to_dict(sampled):
            raise TrialError(
                f"{name} was sampled as {to_dict(sampled)} but {applied.get(name)} was applied: run it again"
            )
