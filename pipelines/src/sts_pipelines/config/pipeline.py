"""What a pipeline is, as values: a training, where it runs and how it is evaluated, and several to be compared."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sts_core import SmoothingConfig
from sts_core.files import is_file_name
from sts_methods import TrainingConfig, method_record
from sts_pipelines.config.cluster import ClusterConfig
from sts_pipelines.config.evaluation import EvaluationConfig
from sts_pipelines.config.plain import digest, outcome_relevant
from sts_pipelines.config.storage_path import local_folder
from sts_pipelines.errors import require


@dataclass(frozen=True, kw_only=True)
class TrackingConfig:
    """Where metrics go besides metrics.jsonl in the run folder."""

    tensorboard: bool = True
    """Write TensorBoard event files into the run folder."""
    wandb_project: str | None = None
    """Weights & Biases project; needs the package wandb."""
    mlflow_uri: str | None = None
    """MLflow tracking URI; needs the package mlflow."""


@dataclass(frozen=True, kw_only=True)
class PipelineConfig:
    """One training with its evaluation: everything that `sts run` needs to know."""

    name: str
    """The name in the catalog, or one of your own; run folders begin with it."""
    training: TrainingConfig = field(metadata={"flatten": True})
    """Method, smoothing, data, optimizer and all numbers of the training."""
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    """Workers, storage and fault tolerance."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """What is measured after training."""
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    """TensorBoard, W&B, MLflow."""

    def __post_init__(self) -> None:
        clean = self.name and all(letter.isalnum() or letter in "-_." for letter in self.name)
        require(
            bool(clean), f"name must be letters, digits, '-', '_' and '.', got {self.name!r}: it names a folder", "name"
        )
        most = max(1, self.cluster.num_workers)
        for workers in range(self.cluster.min_workers or most, most + 1):  # an elastic run meets all of them
            self._check_share(workers)

    def _check_share(self, workers: int) -> None:
        """Whether so many workers can share a batch: equally, or, if the method allows, nearly so."""
        training, record = self.training, method_record(self.training.method)
        share = workers * training.accumulation
        nearly = record is not None and record.takes_uneven_shares and training.global_batch_size >= share
        divisor = training.accumulation if nearly else share
        require(
            training.global_batch_size % divisor == 0,
            f"global_batch_size must be divisible by {'accumulation' if nearly else 'workers x accumulation'} = "
            f"{divisor}, got {training.global_batch_size}: change one of them",
            "training",
            "cluster",
        )

    @property
    def run_name(self) -> str:
        """The name with a digest of all that decides the weights: a changed config never continues an old run."""
        return f"{self.name}-{digest(outcome_relevant(self.training))}"

    @property
    def folder(self) -> Path:
        """The folder that the run works in."""
        return local_folder(self.cluster.storage_path, self.run_name)

    def with_smoothing(self, name: str, smoothing: SmoothingConfig) -> "PipelineConfig":
        """The same pipeline with another teacher."""
        training = dataclasses.replace(self.training, smoothing=smoothing)
        return dataclasses.replace(self, name=name, training=training)


@dataclass(frozen=True, kw_only=True)
class ComparisonConfig:
    """Several teachers under otherwise equal conditions, trained one after the other by one group of workers."""

    pipeline: PipelineConfig = field(metadata={"flatten": True})
    """What all of them share."""
    variants: Mapping[str, SmoothingConfig] = field(default_factory=dict)
    """The teachers by name."""

    def __post_init__(self) -> None:
        require(bool(self.variants), "variants must not be empty: name at least one teacher to train", "variants")
        require(
            "report" not in self.variants,
            "a variant must not be called report, as that folder is the report's",
            "variants",
        )
        for name in self.variants:
            require(
                is_file_name(name),
                f"a variant's folder has its name, which may have letters, digits, '-', '_' and, not at its start, "
                f"'.', got {name!r}",
                "variants",
            )

    @property
    def pipelines(self) -> dict[str, PipelineConfig]:
        """One complete pipeline for each variant."""
        base = self.pipeline
        return {name: base.with_smoothing(f"{base.name}-{name}", one) for name, one in self.variants.items()}

    @property
    def run_name(self) -> str:
        """The name with a digest of all that decides the weights of any variant."""
        training = outcome_relevant(self.pipeline.training)
        variants = {name: outcome_relevant(smoothing) for name, smoothing in self.variants.items()}
        return f"{self.pipeline.name}-{digest(training | {'variants': variants})}"

    @property
    def folder(self) -> Path:
        """The folder that holds one run folder for each variant."""
        return local_folder(self.pipeline.cluster.storage_path, self.run_name)
