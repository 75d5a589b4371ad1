"""Student-teacher methods, their data and their training loop. See README.md."""

from sts_core import CheckpointError, RankMismatchError
from sts_methods import recipes
from sts_methods.batch import Batch
from sts_methods.data.batches import TrainingData, build_training_data, evaluation_data
from sts_methods.data.config import DataConfig
from sts_methods.data.datasets import DatasetRecord, dataset_record, open_source, register_dataset
from sts_methods.data.image_files import ImageReadError
from sts_methods.data.imagenet.archives import prepare_imagenet
from sts_methods.data.label_split import LabelSplit, label_split
from sts_methods.data.sources import ImageArrays, ImageFiles, Split, StoredImages
from sts_methods.methods.base import MethodConfig, MethodRecord, StepResult, StudentTeacherMethod
from sts_methods.methods.byol import Byol, ByolConfig
from sts_methods.methods.dino import Dino, DinoConfig
from sts_methods.methods.fixmatch import FixMatch, FixMatchConfig
from sts_methods.methods.health import health_metrics
from sts_methods.methods.losses import cosine_distance
from sts_methods.methods.mean_teacher import MeanTeacher, MeanTeacherConfig
from sts_methods.methods.moco import MoCo, MoCoConfig
from sts_methods.methods.moco_v3 import MoCoV3, MoCoV3Config
from sts_methods.methods.registry import METHODS, build_method, method_record, register_method
from sts_methods.networks.backbones import Stem, build_backbone, num_features
from sts_methods.networks.batch_norm import each_apart, use_cross_rank_batch_norm
from sts_methods.networks.heads import Encoder, initialised_from, linear_classifier, norm_mlp
from sts_methods.runs.backbone_files import load_backbone, save_backbone, verify_backbone
from sts_methods.runs.checkpoint import CheckpointStore, read_checkpoint, read_manifest, write_checkpoint
from sts_methods.runs.export import ExportReport, export
from sts_methods.runs.hub_folder import export_to_hub_folder
from sts_methods.runs.metrics_log import MetricsLog
from sts_methods.runs.progress_line import ProgressDisplay, columns_of, format_seconds, painted
from sts_methods.runs.runtime import LocalRuntime, RunListener, RunPlan, Runtime, default_device
from sts_methods.training.config import TrainingConfig
from sts_methods.training.description import describe_training
from sts_methods.training.failure_checks import CollapseError, NonFiniteLossError
from sts_methods.training.initial import InitialConfig, InitialWeights, load_initial_, start_from_, warn_of_statistics
from sts_methods.training.loop import TrainingResult, fit
from sts_methods.training.observation import Observation
from sts_methods.training.optimizers import OptimizerConfig, build_optimizer, learning_rate, set_learning_rate_
from sts_methods.views.specs import (
    CropView,
    StrongView,
    ViewsRecord,
    WeakView,
    multi_crop,
    register_views,
    two_views,
    two_weak_views,
    weak_and_strong,
)
from sts_methods.views.strength import AugmentationConfig

__all__ = [
    "METHODS", "AugmentationConfig", "Batch", "Byol", "ByolConfig", "CheckpointError", "CheckpointStore",
    "CollapseError", "CropView", "DataConfig", "DatasetRecord", "Dino", "DinoConfig", "Encoder", "ExportReport",
    "FixMatch", "FixMatchConfig", "ImageArrays", "ImageFiles", "ImageReadError", "InitialConfig", "InitialWeights",
    "LabelSplit", "LocalRuntime", "MeanTeacher", "MeanTeacherConfig", "MethodConfig", "MethodRecord", "MetricsLog",
    "MoCo", "MoCoConfig", "MoCoV3", "MoCoV3Config", "NonFiniteLossError", "Observation", "OptimizerConfig",
    "ProgressDisplay", "RankMismatchError", "RunListener", "RunPlan", "Runtime", "Split", "Stem", "StepResult",
    "StoredImages", "StrongView", "StudentTeacherMethod", "TrainingConfig", "TrainingData", "TrainingResult",
    "ViewsRecord", "WeakView", "build_backbone", "build_method", "build_optimizer", "build_training_data", "columns_of",
    "cosine_distance", "dataset_record", "default_device", "describe_training", "each_apart", "evaluation_data",
    "export", "export_to_hub_folder", "fit", "format_seconds", "health_metrics", "initialised_from", "label_split",
    "learning_rate", "linear_classifier", "load_backbone", "load_initial_", "method_record", "multi_crop", "norm_mlp",
    "num_features", "open_source", "painted", "prepare_imagenet", "read_checkpoint", "read_manifest", "recipes",
    "register_dataset", "register_method", "register_views", "save_backbone", "set_learning_rate_", "start_from_",
    "two_views", "two_weak_views", "use_cross_rank_batch_norm", "verify_backbone", "warn_of_statistics",
    "weak_and_strong", "write_checkpoint",
]  # fmt: skip
