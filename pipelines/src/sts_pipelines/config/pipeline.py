"""What a pipeline is, as values: how to train, where, how to evaluate, and what to compare or sweep."""

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from sts_core import ConfigError, Network, SmoothingConfig
from sts_core.files import is_file_name
from sts_eval import (
    DetectionConfig,
    Evaluation,
    FeatureConfig,
    LinearProbeConfig,
    NeighboursConfig,
    registered_evaluations,
)
from sts_methods import TrainingConfig
from sts_pipelines.config.plain import digest, kind_of, outcome_relevant, to_dict
from sts_pipelines.config.storage_path import local_folder

MOST_CPUS = 1024
"""More than a machine has: Ray would wait for one for ever."""


def _require(condition: bool, message: str, *fields: str) -> None:
    if not condition:
        raise ConfigError(message, fields=fields)


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """Where the workers run and how much they may fail."""

    num_workers: int = 8
    """Ray Train workers, one process each; 0 trains in this process without Ray."""
    min_workers: int | None = None
    """Elastic training: the run may shrink to so many workers; the global batch stays the same."""
    use_gpu: bool = True
    """One GPU per worker (NCCL); without it gloo on the CPU."""
    cpus_per_worker: float = 1.0
    """CPUs that Ray reserves for a worker; may be a fraction."""
    max_failures: int = 3
    """Restarts of the worker group from the newest checkpoint before the run is given up; -1 is without end."""
    storage_path: str = "runs"
    """Where run folders are made: a path all workers see, or a URI that Ray can write to (s3://, gs://)."""
    address: str | None = None
    """Ray cluster to join (auto, or ray://host:port); without it a local one is started for this run."""
    dashboard_port: int | None = None
    """Port of the local cluster's dashboard on 127.0.0.1; without it the first free one from 8265 on."""

    def __post_init__(self) -> None:
        _require(
            self.num_workers >= 0,
            f"num_workers must not be negative, got {self.num_workers}: 0 trains in process",
            "num_workers",
        )
        _require(
            0 < self.cpus_per_worker <= MOST_CPUS,
            f"cpus_per_worker must be positive and at most {MOST_CPUS:,}, got {self.cpus_per_worker:g}",
            "cpus_per_worker",
        )
        _require(
            self.max_failures >= -1,
            f"max_failures must be -1 or more, got {self.max_failures}: -1 never gives up",
            "max_failures",
        )
        if self.min_workers is not None:
            fits = 1 <= self.min_workers <= self.num_workers
            _require(
                fits,
                f"min_workers must be from 1 to num_workers={self.num_workers}, got {self.min_workers}",
                "min_workers",
                "num_workers",
            )


def measurable() -> dict[str, Evaluation]:
    """The evaluations that can follow a training, by name."""
    return {one.name: one for one in registered_evaluations() if not one.logged}


def own_sections() -> dict[str, type]:
    """The dataclass of settings that each further evaluation brings, by the name of its section."""
    return {name.replace("-", "_"): one.config for name, one in measurable().items() if one.config is not None}


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """What is measured after training; both networks are, and each number says which one it belongs to."""

    after_training: tuple[str, ...] = ("linear", "knn")
    """Evaluations that follow the training at once; `sts evaluate --only` runs any of them later."""
    networks: tuple[Network, ...] = ("teacher", "student")
    """Which networks are evaluated; the paper's rows are the teacher's."""
    linear: LinearProbeConfig = field(default_factory=LinearProbeConfig)
    """The linear classifier on frozen features."""
    knn: NeighboursConfig = field(default_factory=NeighboursConfig)
    """The nearest-neighbour classifier; the first k and temperature are the ones that rank trials."""
    features: FeatureConfig = field(default_factory=FeatureConfig)
    """How images are fed to the backbone."""
    imagenet_c_root: str | None = None
    """Folder of the released ImageNet-C or CIFAR-10-C images; small datasets are corrupted here if there is none."""
    severities: tuple[int, ...] = (1, 2, 3, 4, 5)
    """Severities of corruptions that are generated here; released images have all five."""
    corruption_cache: str | None = None
    """Folder that keeps the corrupted images generated here, for all runs that are shown them."""
    voc: DetectionConfig = field(default_factory=lambda: DetectionConfig(data_root="VOCdevkit"))
    """Fine-tuning of a detector on VOC07+12."""
    voc_trials: int = 1
    """Fine-tunings, with one seed after the other, whose mean is reported; MoCo's authors report that of five."""
    own: Mapping[str, Any] = field(default_factory=dict, metadata={"sections": own_sections})
    """Settings of further evaluations, each in a section of its name."""

    def __post_init__(self) -> None:
        known = measurable()
        for name in self.after_training:
            near = difflib.get_close_matches(name, list(known), n=1)
            hint = f": did you mean {near[0]}?" if near else ""
            _require(
                name in known,
                f"after_training must hold some of {', '.join(known)}, got {name!r}{hint}",
                "after_training",
            )
        own = {name: self.own.get(name) or section() for name, section in own_sections().items()}
        object.__setattr__(self, "own", own)
        _require(self.voc_trials >= 1, f"voc_trials must be at least 1, got {self.voc_trials}", "voc_trials")


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
        _require(
            bool(clean), f"name must be letters, digits, '-', '_' and '.', got {self.name!r}: it names a folder", "name"
        )
        most = max(1, self.cluster.num_workers)
        for workers in range(self.cluster.min_workers or most, most + 1):  # an elastic run meets all of them
            share = workers * self.training.accumulation
            _require(
                self.training.global_batch_size % share == 0,
                f"global_batch_size must be divisible by workers x accumulation = {share}, "
                f"got {self.training.global_batch_size}: change one of them",
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
        _require(bool(self.variants), "variants must not be empty: name at least one teacher to train", "variants")
        _require(
            "report" not in self.variants,
            "a variant must not be called report, as that folder is the report's",
            "variants",
        )
        for name in self.variants:
            _require(
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


def _is_fraction(value: Any) -> bool:
    try:
        return 0 <= float(value) <= 1
    except (TypeError, ValueError):
        return False


AXES = ("smoothing.momentum", "smoothing.preserve_probability", "smoothing.granularity")
"""The fields of momenta, preserve_probabilities and granularities, for which `over` may stand in."""


@dataclass(frozen=True, kw_only=True)
class GridConfig:
    """Which teachers a sweep visits, and how."""

    momenta: tuple[float, ...] = (0.0, 0.9, 0.99, 0.999)
    """Values of m: the paper's grid."""
    preserve_probabilities: tuple[float, ...] = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.999)
    """Values of p: the figure's .1 to .9, and 0, .99 and .999, which its text speaks of."""
    granularities: tuple[Literal["layer", "module", "channel", "neuron"], ...] = ("layer",)
    """Values of the granularity."""
    cells: tuple[tuple[float, float], ...] = ()
    """Pairs (m, p), written [[0.9, 0.5], [0.99, 0.7]], to visit instead of momenta x preserve_probabilities."""
    over: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Further fields with their values, for every cell: --sweep.over optimizer.lr=0.03,0.1, once for each field."""
    seeds: tuple[int, ...] = ()
    """Seeds with which everything is trained, for means with intervals; without them the pipeline's own."""
    search: Literal["grid", "random", "asha"] = "grid"
    """Every cell, or random samples, to the end; or many samples of which ASHA stops the worse half early."""
    num_samples: int = 32
    """Samples of a random or ASHA search; a grid has as many trials as cells."""
    coordinates: Literal["m-p", "m_eff-p"] = "m-p"
    """A search draws (m, p), or p and m_eff = 1 - (1-p)(1-m) and solves for m."""
    with_control: bool = False
    """Train for every cell with p > 0 also its control TMA(m_eff)."""
    metric: str = "knn/teacher/top1"
    """What ranks the trials: the loss of self-supervised training does not."""
    cells_per_trial: int = 1
    """Cells that one worker group trains one after the other (grid only): small ones share the workers' start-up."""
    max_concurrent: int | None = None
    """Trials at a time; without it as many as the cluster has room for."""
    one_student: bool = False
    """Train one student with a bank of all teachers: only right where the teacher does not influence training."""

    def __post_init__(self) -> None:
        _require(self.num_samples >= 1, f"num_samples must be at least 1, got {self.num_samples}", "num_samples")
        for name in ("cells_per_trial", "max_concurrent"):
            value = getattr(self, name)
            _require(value is None or value >= 1, f"{name} must be at least 1, got {value}", name)
        self._check_cells()
        self._check_metric()
        self._check_over()
        if self.one_student and self.search != "grid":
            raise ConfigError(
                f"one_student needs search: grid, got {self.search}: the bank holds every cell from the start",
                fields=("one_student", "search"),
            )

    def _check_over(self) -> None:
        for name, values in self.over.items():
            _require(bool(values), f"over: {name} needs at least one value", "over")
        for name in AXES[:2]:
            for value in self.over.get(name, ()):
                _require(_is_fraction(value), f"over: {name} must be in [0, 1], got {value}", "over")
        _require(
            "seed" not in self.over, "over: seed is not a setting to choose, but one to average over: set seeds", "over"
        )
        _require(len(set(self.seeds)) == len(self.seeds), f"seeds must differ, got {self.seeds}", "seeds")
        others = [*set(self.over) - set(AXES), *(["seeds"] if self.seeds else [])]
        _require(
            not (self.one_student and others),
            f"one_student varies teachers alone, got {', '.join(others)}",
            "one_student",
            "over",
            "seeds",
        )

    def _check_cells(self) -> None:
        values: dict[str, Sequence[float]] = {
            "momenta": self.momenta,
            "preserve_probabilities": self.preserve_probabilities,
        }
        for name, numbers in values.items():
            _require(
                bool(numbers or self.cells),
                f"{name} must not be empty: give at least one value, or cells",
                name,
                "cells",
            )
        _require(
            bool(self.granularities),
            "granularities must not be empty: give at least one, such as layer",
            "granularities",
        )
        values["cells"] = [number for cell in self.cells for number in cell]
        for name, numbers in values.items():
            for value in numbers:
                _require(0 <= value <= 1, f"{name} must be in [0, 1], got {value}: they are fractions", name)

    def _check_metric(self) -> None:
        evaluation, _, rest = self.metric.partition("/")
        network, _, number = rest.partition("/")
        known = measurable().get(evaluation)
        if known is None or network not in get_args(Network) or not number:
            message = f"metric must be evaluation/network/number such as knn/teacher/top1, got {self.metric}"
            raise ConfigError(message, fields=("metric",))
        numbers = [metric.name for metric in known.metrics]
        _require(number in numbers, f"metric: {evaluation} measures {', '.join(numbers)}, got {number}", "metric")
        quick = [f"{one.name}/.../{one.metrics[0].name}" for one in measurable().values() if one.trains_nothing]
        _require(
            self.search != "asha" or f"{evaluation}/.../{number}" in quick,
            f"ASHA ranks trials by {' or '.join(quick)}, got metric {self.metric}",
            "search",
            "metric",
        )
        _require(
            not self.one_student or network == "teacher",
            f"one_student has one student for all cells, got metric {self.metric}: rank by a number of the teacher",
            "one_student",
            "metric",
        )


@dataclass(frozen=True, kw_only=True)
class SweepConfig:
    """A grid or a search over (m, p, granularity) and any other field; every trial is a Ray Train run."""

    pipeline: PipelineConfig = field(metadata={"flatten": True})
    """What all trials share."""
    sweep: GridConfig = field(default_factory=GridConfig)
    """Which teachers are visited."""

    def __post_init__(self) -> None:
        evaluation, network, _ = self.sweep.metric.split("/", 2)
        measured = self.pipeline.evaluation
        _require(
            evaluation in measured.after_training and network in measured.networks,
            f"sweep.metric must be one of the numbers that evaluation asks for, got {self.sweep.metric}: "
            f"add {evaluation} to evaluation.after_training and {network} to evaluation.networks, or rank by another",
            "sweep",
            "pipeline",
        )
        if self.sweep.one_student:
            labels = getattr(self.pipeline.training.method, "pseudo_labels", None)
            _require(
                labels == "student",
                f"sweep.one_student needs method.pseudo_labels: student, got {labels}: "
                "with any other setting the teacher changes what the student learns",
                "sweep",
                "pipeline",
            )
            schedule = self.pipeline.training.momentum_schedule
            _require(
                schedule == "constant",
                f"sweep.one_student needs momentum_schedule: constant, got {schedule}",
                "sweep",
                "pipeline",
            )


AnyPipeline = PipelineConfig | ComparisonConfig | SweepConfig


def base_of(config: AnyPipeline) -> PipelineConfig:
    """The pipeline that a comparison or a sweep varies, or the pipeline itself."""
    return config if isinstance(config, PipelineConfig) else config.pipeline


def plain_of(config: AnyPipeline) -> dict[str, Any]:
    """The plain form of a config with its kind, as files hold it."""
    return {"kind": kind_of(type(config))} | to_dict(config)
