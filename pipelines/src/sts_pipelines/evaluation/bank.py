"""Measuring the teachers of a bank: each gets a folder of results of its own, as if it had been the run's teacher."""

from pathlib import Path

import torch

from sts_core.distributed import gather_lists
from sts_eval import CheckpointAccuracy, classification_accuracy, few_labels
from sts_methods import build_method
from sts_methods.data.batches import evaluation_data
from sts_methods.runs.checkpoint import CheckpointStore
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.evaluation.evaluator import evaluate_run, readable_checkpoints
from sts_pipelines.evaluation.settings import is_done, settings_of, write_entries


def evaluate_bank(folder: Path, pipeline: PipelineConfig, results: Path, *, device: torch.device) -> None:
    """Evaluate every teacher of the bank of the run in `folder` into `results`/<name>; all ranks take part."""
    config = pipeline.evaluation
    names = list(pipeline.training.bank)
    if "few-labels" in config.after_training:
        settings = settings_of("few-labels", pipeline)
        missing = [name for name in names if not is_done(results / name, "few-labels", "teacher", settings)]
        for name, records in _few_labels(folder, pipeline, missing, device=device).items():
            entries = [entry for result in few_labels(records) for entry in result.entries()]
            write_entries(results / name, entries, pipeline)
    for name in names:
        evaluate_run(folder, pipeline, device=device, teacher=name, results=results / name)


def _few_labels(
    folder: Path, pipeline: PipelineConfig, names: list[str], *, device: torch.device
) -> dict[str, list[CheckpointAccuracy]]:
    """Accuracy of every teacher at every checkpoint; each checkpoint is read once, by one of the ranks."""
    if not names:
        return {}
    training = pipeline.training
    _, test = evaluation_data(training.data)
    teacher = build_method(training.method, seed=training.seed).teacher.to(device)
    store = CheckpointStore(folder / "checkpoints")
    mine: dict[str, list[CheckpointAccuracy]] = {name: [] for name in names}
    for step, state in readable_checkpoints(store):
        for name in names:
            teacher.load_state_dict(state["bank"]["teachers"][name])
            top1 = classification_accuracy(teacher, test, pipeline.evaluation.features, device=device)[1]
            mine[name].append(CheckpointAccuracy(step, "teacher", top1))
    return {name: gather_lists(records) for name, records in mine.items()}
