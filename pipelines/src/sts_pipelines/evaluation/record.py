"""What pipelines know of an evaluation: one record each, from which checks, digests and the evaluator are derived."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sts_core.fields import outcome_relevant
from sts_eval import Evaluation
from sts_eval import register_evaluation as register_results
from sts_pipelines.config.evaluation import EvaluationConfig
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.errors import UsageError
from sts_pipelines.evaluation.run import EvaluatedRun

Entries = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class EvaluationRecord:
    """How a pipeline measures an evaluation. Functions that measure are called by every rank, and share the work."""

    about: Evaluation
    """Its name, its metrics and how readers tell them apart."""
    measure: Callable[[EvaluatedRun, Sequence[str]], Entries]
    """The entries of the networks of these names."""
    settings: Callable[[PipelineConfig], Mapping[str, Any]] | None = None
    """What its numbers depend on besides networks and images; without it, its own section of the config."""
    together: bool = False
    """All networks are measured in one call, since the images cost more than the networks."""
    shows_dataset: bool = True
    """It shows the labelled images of the dataset, on which its numbers depend."""
    needs_classifier: bool = False
    """It measures the classifier that the method trained."""
    folder: Callable[[EvaluationConfig], str | None] | None = None
    """The folder of images that it needs, None where it makes its own."""
    folder_flag: str = ""
    """The flag that sets this folder."""
    check: Callable[[EvaluationConfig], None] | None = None
    """Raises where this machine lacks what it needs."""
    scratch: str | None = None
    """Folder beside results.json that keeps unfinished work until the run is evaluated."""
    share: Callable[[Sequence[EvaluatedRun]], None] | None = None
    """Measures several runs in one pass over the images; `measure` finds the outcomes."""
    measure_bank: Callable[[EvaluatedRun, Sequence[str]], Mapping[str, Entries]] | None = None
    """The entries of these teachers of a bank by name, faster than one `measure` after the other."""
    in_training: Callable[[PipelineConfig, str, Any], Callable[[Any], float]] | None = None
    """For a network's name and `LabelledImages`, a function from the method in training to the first metric."""

    @property
    def name(self) -> str:
        return self.about.name

    def networks_of(self, pipeline: PipelineConfig) -> tuple[str, ...]:
        """The networks to measure; an untrained classifier is right by chance and no baseline."""
        return tuple(n for n in pipeline.evaluation.networks if n != "untrained" or not self.needs_classifier)

    def depends_on(self, pipeline: PipelineConfig) -> dict[str, Any]:
        """All that the numbers depend on besides the networks."""
        images = data_of(pipeline) if self.shows_dataset else {}
        if self.settings is not None:
            return {"evaluation": self.name, **images, **self.settings(pipeline)}
        own = pipeline.evaluation.own.get(self.name.replace("-", "_"))
        return {"evaluation": self.name, **images, **({} if own is None else {self.name: outcome_relevant(own)})}


def data_of(pipeline: PipelineConfig) -> dict[str, Any]:
    """The images that networks are evaluated on, and the type of the numbers in which they see them."""
    data = pipeline.training.data
    images: dict[str, Any] = {"dataset": data.dataset, "root": data.root, "image_size": data.image_size}
    layout = ("image_column", "label_column", "train_split", "test_split")
    images |= {name: getattr(data, name) for name in layout if getattr(data, name) is not None}
    return images | {"precision": pipeline.evaluation.features.precision}


_RECORDS: dict[str, EvaluationRecord] = {}


def register_evaluation(record: EvaluationRecord) -> EvaluationRecord:
    """Make an evaluation known to pipelines and, with its metrics, to results and reports; returns it."""
    register_results(record.about)
    _RECORDS[record.name] = record
    return record


def record_of(name: str) -> EvaluationRecord:
    """The record of an evaluation."""
    if name not in _RECORDS:
        raise UsageError(
            f"{name} is an evaluation of sts_eval that pipelines cannot measure: register an EvaluationRecord"
        )
    return _RECORDS[name]


def records_of(pipeline: PipelineConfig) -> list[EvaluationRecord]:
    """The evaluations that a pipeline asks for."""
    return [record_of(name) for name in pipeline.evaluation.after_training]
