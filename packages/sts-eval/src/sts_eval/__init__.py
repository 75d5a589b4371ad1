"""Measure a backbone, and set the numbers beside the paper's: see README.md."""

from sts_eval.accuracy import top_k_accuracy
from sts_eval.compare import Comparison, compare_with_paper, comparison_table, load_run
from sts_eval.corruption_arrays import ArrayCorruptions
from sts_eval.corruption_data import FolderCorruptions
from sts_eval.corruption_differences import CorruptionDifference, compare_corruptions
from sts_eval.corruption_generation import CleanArrays, CleanFolder, GeneratedCorruptions
from sts_eval.corruption_results import CorruptionResult
from sts_eval.corruptions import (
    CellResult,
    CorruptionConfig,
    cells_of,
    corruption_robustness,
    evaluate_cell,
    merge_cells,
)
from sts_eval.detection import DetectionConfig, DetectionResult, detection_transfer
from sts_eval.dynamics import DriftCurve, DriftRecord, drift_curve, read_drift, smoothing_effect, teacher_dynamics
from sts_eval.errors import CheckpointError, DataError
from sts_eval.features import FeatureConfig, Features, extract_features
from sts_eval.few_labels import (
    CheckpointAccuracy,
    FewLabelsResult,
    classification_accuracy,
    evaluate_checkpoints,
    few_labels,
)
from sts_eval.images import CentreCrop, image_folder
from sts_eval.linear import LinearProbeResult, linear_probe
from sts_eval.linear_config import LinearProbeConfig, byol_protocol, fast_protocol, moco_protocol
from sts_eval.neighbours import NeighboursConfig, NeighboursResult, nearest_neighbours
from sts_eval.published import PUBLISHED, PublishedNumber, published, published_rows
from sts_eval.report import write_report
from sts_eval.results import RunResults, add_entries, read_results, write_results
from sts_eval.source import Backbone, load_source

__all__ = [
    "PUBLISHED",
    "ArrayCorruptions",
    "Backbone",
    "CellResult",
    "CentreCrop",
    "CheckpointAccuracy",
    "CheckpointError",
    "CleanArrays",
    "CleanFolder",
    "Comparison",
    "CorruptionConfig",
    "CorruptionDifference",
    "CorruptionResult",
    "DataError",
    "DetectionConfig",
    "DetectionResult",
    "DriftCurve",
    "DriftRecord",
    "FeatureConfig",
    "Features",
    "FewLabelsResult",
    "FolderCorruptions",
    "GeneratedCorruptions",
    "LinearProbeConfig",
    "LinearProbeResult",
    "NeighboursConfig",
    "NeighboursResult",
    "PublishedNumber",
    "RunResults",
    "add_entries",
    "byol_protocol",
    "cells_of",
    "classification_accuracy",
    "compare_corruptions",
    "compare_with_paper",
    "comparison_table",
    "corruption_robustness",
    "detection_transfer",
    "drift_curve",
    "evaluate_cell",
    "evaluate_checkpoints",
    "extract_features",
    "fast_protocol",
    "few_labels",
    "image_folder",
    "linear_probe",
    "load_run",
    "load_source",
    "merge_cells",
    "moco_protocol",
    "nearest_neighbours",
    "published",
    "published_rows",
    "read_drift",
    "read_results",
    "smoothing_effect",
    "teacher_dynamics",
    "top_k_accuracy",
    "write_report",
    "write_results",
]
