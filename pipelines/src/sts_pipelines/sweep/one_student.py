"""A whole grid of teachers from one training run, where the teacher does not influence training.

With student pseudo-labels FixMatch's teacher only watches: 32 teachers of one student, kept by a `TeacherBank`, are bit
for bit the teachers of 32 separate runs. Each trial gets a folder of its own with config and results, as if it had run.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sts_core.files import write_atomically
from sts_methods import CheckpointStore
from sts_pipelines.config.run_folder import describe_run
from sts_pipelines.config.sweep import SweepConfig
from sts_pipelines.launch.driver import launch
from sts_pipelines.launch.job import Job
from sts_pipelines.launch.storage import up_to_date
from sts_pipelines.sweep.outcomes import forget_errors, note_error
from sts_pipelines.sweep.trials import Trial


def train_one_student(config: SweepConfig, trials: Sequence[Trial], folder: Path) -> None:
    """Train the student with all trials in its bank, and evaluate each of them into its own folder."""
    pipeline = config.pipeline
    bank = {trial.name: trial.smoothing for trial in trials}
    training = replace(pipeline.training, bank=bank)
    student = replace(pipeline, training=training)
    job = Job(label=pipeline.name, pipeline=student, folder=folder / student.run_name, bank_folder=folder)
    folders = [folder / trial.name for trial in trials]
    with up_to_date(pipeline.cluster.storage_path, folders):
        forget_errors(folders)
    launch([job], name=student.run_name, folder=job.folder)
    with up_to_date(pipeline.cluster.storage_path, folders):
        _check_applied(job, trials, folder)
        for trial in trials:  # without a config.yaml, which would make it a run that can be evaluated again
            told = describe_run(trial.pipeline_of(pipeline))
            write_atomically(folder / trial.name / "training.json", json.dumps(told, indent=1) + "\n")


def _check_applied(job: Job, trials: Sequence[Trial], folder: Path) -> None:
    """Mark the trials whose m and p are not those that the live bank applied last, as its last checkpoint records."""
    state = CheckpointStore(job.folder / "checkpoints").latest()
    applied = {} if state is None else state["bank"].get("applied", {})
    for trial in trials:
        sampled = {name: getattr(trial.smoothing, name) for name in ("momentum", "preserve_probability")}
        got = {name: value for name, value in applied.get(trial.name, {}).items() if name in sampled}
        if got != sampled:
            note_error(
                folder / trial.name,
                f"{trial.name} was sampled with {sampled} but applied {got or 'nothing that is recorded'}: its result "
                f"is void, remove {folder} to train all trials anew",
            )
