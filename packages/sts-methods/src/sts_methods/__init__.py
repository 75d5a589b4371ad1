"""Student-teacher methods, their data and their training loop. See README.md."""

from sts_methods.backbones import build_backbone
from sts_methods.byol import Byol, ByolConfig
from sts_methods.checkpoint import CheckpointError, CheckpointStore, read_checkpoint, write_checkpoint
from sts_methods.data import DataConfig, TrainingData, build_training_data, evaluation_data
from sts_methods.dino import Dino, DinoConfig
from sts_methods.export import ExportReport, export, load_backbone, save_backbone
from sts_methods.fixmatch import FixMatch, FixMatchConfig
from sts_methods.guards import CollapseError, NonFiniteLossError, RankMismatchError
from sts_methods.labels import LabelSplit, label_split
from sts_methods.mean_teacher import MeanTeacher, MeanTeacherConfig
from sts_methods.method import Batch, StepResult, StudentTeacherMethod
from sts_methods.methods import METHODS, MethodConfig, build_method
from sts_methods.metrics import MetricsLog
from sts_methods.moco import MoCo, MoCoConfig
from sts_methods.optim import OptimizerConfig
from sts_methods.reading import ImageReadError
from sts_methods.runtime import LocalRuntime, RunPlan, Runtime
from sts_methods.training import TrainingConfig, TrainingResult, fit
from sts_methods.views import CropView, StrongView, WeakView, multi_crop, two_views, two_weak_views, weak_and_strong

__all__ = [
    "METHODS",
    "Batch",
    "Byol",
    "ByolConfig",
    "CheckpointError",
    "CheckpointStore",
    "CollapseError",
    "CropView",
    "DataConfig",
    "Dino",
    "DinoConfig",
    "ExportReport",
    "FixMatch",
    "FixMatchConfig",
    "ImageReadError",
    "LabelSplit",
    "LocalRuntime",
    "MeanTeacher",
    "MeanTeacherConfig",
    "MethodConfig",
    "MetricsLog",
    "MoCo",
    "MoCoConfig",
    "NonFiniteLossError",
    "OptimizerConfig",
    "RankMismatchError",
    "RunPlan",
    "Runtime",
    "StepResult",
    "StrongView",
    "StudentTeacherMethod",
    "TrainingConfig",
    "TrainingData",
    "TrainingResult",
    "WeakView",
    "build_backbone",
    "build_method",
    "build_training_data",
    "evaluation_data",
    "export",
    "fit",
    "label_split",
    "load_backbone",
    "multi_crop",
    "read_checkpoint",
    "save_backbone",
    "two_views",
    "two_weak_views",
    "weak_and_strong",
    "write_checkpoint",
]
