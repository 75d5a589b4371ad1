"""Accuracy of the classifiers that a method trained, at every checkpoint that was kept, shared out among the ranks."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from sts_core.distributed import gather_lists, rank, world_size
from sts_eval import CheckpointAccuracy, classification_accuracy, evaluate_checkpoints, evaluation_called, few_labels
from sts_methods import CheckpointError, CheckpointStore, build_method, read_checkpoint
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.evaluation.record import Entries, EvaluationRecord, register_evaluation
from sts_pipelines.evaluation.run import EvaluatedRun


def measure(run: EvaluatedRun, networks: Sequence[str]) -> Entries:
    """Last, best and median over the checkpoints."""
    models = _classifiers(run, networks)
    records = gather_lists(evaluate_checkpoints(models, run.data[1], run.config.features, device=run.device))
    return _entries(records)


def _entries(records: Sequence[CheckpointAccuracy]) -> Entries:
    return [entry for result in few_labels(records) for entry in result.entries()]


def _classifiers(run: EvaluatedRun, networks: Sequence[str]) -> Iterator[tuple[int, dict[str, nn.Module]]]:
    training = run.pipeline.training
    method = build_method(training.method, seed=training.seed).to(run.device)
    models = {network: method.teacher if network == "teacher" else method.student for network in networks}
    for step, state in readable_checkpoints(CheckpointStore(run.folder / "checkpoints")):
        method.load_state_dict(state["method"])
        yield step, models


def readable_checkpoints(store: CheckpointStore) -> Iterator[tuple[int, dict[str, Any]]]:
    """This rank's share of the checkpoints; of damaged ones only the newest, which `last` stands for, is an error."""
    steps = store.steps()
    for step in steps[rank() :: world_size()]:
        try:
            state = read_checkpoint(store.path(step))
        except CheckpointError as error:
            if step == steps[-1]:
                raise
            warnings.warn(f"skipped a damaged checkpoint: {error}", UserWarning, stacklevel=2)
        else:
            yield step, state


def measure_bank(run: EvaluatedRun, teachers: Sequence[str]) -> Mapping[str, Entries]:
    """The same of every teacher of a bank; each checkpoint is read once, by one of the ranks."""
    training = run.pipeline.training
    teacher = build_method(training.method, seed=training.seed).teacher.to(run.device)
    mine: dict[str, list[CheckpointAccuracy]] = {name: [] for name in teachers}
    for step, state in readable_checkpoints(CheckpointStore(run.folder / "checkpoints")):
        for name in teachers:
            teacher.load_state_dict(state["bank"]["teachers"][name])
            top1 = classification_accuracy(teacher, run.data[1], run.config.features, device=run.device)[1]
            mine[name].append(CheckpointAccuracy(step, "teacher", top1))
    return {name: _entries(gather_lists(records)) for name, records in mine.items()}


def in_training(pipeline: PipelineConfig, network: str, images: Any) -> Callable[[Any], float]:
    """Top-1 of the classifier as it is."""

    def value(method: Any) -> float:
        model = method.teacher if network == "teacher" else method.student
        return classification_accuracy(model, images.test, pipeline.evaluation.features)[1]

    return value


register_evaluation(
    EvaluationRecord(
        about=evaluation_called("few-labels"),
        measure=measure,
        settings=lambda pipeline: {},
        together=True,
        needs_classifier=True,
        measure_bank=measure_bank,
        in_training=in_training,
    )
)
