"""Student-teacher methods, their data and their training loop. See README.md."""

from sts_methods.backbones import build_backbone
from sts_methods.byol import Byol, ByolConfig
from sts_methods.dino import Dino, DinoConfig
from sts_methods.export import ExportReport, export, load_backbone, save_backbone
from sts_methods.fixmatch import FixMatch, FixMatchConfig
from sts_methods.mean_teacher import MeanTeacher, MeanTeacherConfig
from sts_methods.method import Batch, StepResult, StudentTeacherMethod
from sts_methods.methods import METHODS, MethodConfig, build_method
from sts_methods.moco import MoCo, MoCoConfig

__all__ = [
    "METHODS",
    "Batch",
    "Byol",
    "ByolConfig",
    "Dino",
    "DinoConfig",
    "ExportReport",
    "FixMatch",
    "FixMatchConfig",
    "MeanTeacher",
    "MeanTeacherConfig",
    "MethodConfig",
    "MoCo",
    "MoCoConfig",
    "StepResult",
    "StudentTeacherMethod",
    "build_backbone",
    "build_method",
    "export",
    "load_backbone",
    "save_backbone",
]
