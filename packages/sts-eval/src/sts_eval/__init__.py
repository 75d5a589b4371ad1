"""Measure a backbone, and set the numbers beside the paper's: see README.md."""

from sts_core import CheckpointError
from sts_eval.corruptions.arrays import ArrayCorruptions
from sts_eval.corruptions.benchmark import MAIN_CORRUPTIONS
from sts_eval.corruptions.differences import CorruptionDifference, compare_corruptions
from sts_eval.corruptions.evaluation import (
    CellResult,
    CorruptionConfig,
    cells_of,
    corruption_robustness,
    evaluate_cell,
    merge_cells,
)
from sts_eval.corruptions.folders import FolderCorruptions
from sts_eval.corruptions.generated import CleanArrays, CleanFolder, GeneratedCorruptions
from sts_eval.corruptions.results import CorruptionResult
from sts_eval.detection import DetectionConfig, DetectionResult, detection_transfer
from sts_eval.detection.backends.choice import require_backend
from sts_eval.errors import DataError
from sts_eval.evaluations import Evaluation, Metric, evaluation_called, register_evaluation, registered_evaluations
from sts_eval.features.backbone_source import Backbone, load_source
from sts_eval.features.extraction import FeatureConfig, Features, extract_features
from sts_eval.features.images import CentreCrop, image_folder
from sts_eval.intervals import Estimate, estimate
from sts_eval.paper.comparison import Comparison, compare_with_paper, comparison_table, load_run
from sts_eval.paper.numbers import PUBLISHED, PublishedNumber, published, published_rows
from sts_eval.probes.accuracy import top_k_accuracy
from sts_eval.probes.few_labels import (
    CheckpointAccuracy,
    FewLabelsResult,
    classification_accuracy,
    evaluate_checkpoints,
    few_labels,
)
from sts_eval.probes.linear.probe import LinearProbeResult, linear_probe, linear_probes
from sts_eval.probes.linear.protocol import LinearProbeConfig, byol_protocol, fast_protocol, moco_protocol
from sts_eval.probes.neighbours import NeighboursConfig, NeighboursResult, nearest_neighbours
from sts_eval.report import charts
from sts_eval.report.averages import write_averages_report
from sts_eval.report.build import results_markdown, write_report
from sts_eval.results import RunResults, add_entries, read_results, write_results
from sts_eval.runs.averages import Average, Averages, read_averages
from sts_eval.runs.drift import DriftCurve, DriftRecord, drift_curve, read_drift, smoothing_effect, teacher_dynamics

__all__ = [
    "MAIN_CORRUPTIONS", "PUBLISHED", "ArrayCorruptions", "Average", "Averages", "Backbone", "CellResult", "CentreCrop",
    "CheckpointAccuracy", "CheckpointError", "CleanArrays", "CleanFolder", "Comparison", "CorruptionConfig",
    "CorruptionDifference", "CorruptionResult", "DataError", "DetectionConfig", "DetectionResult", "DriftCurve",
    "DriftRecord", "Estimate", "Evaluation", "FeatureConfig", "Features", "FewLabelsResult", "FolderCorruptions",
    "GeneratedCorruptions", "LinearProbeConfig", "LinearProbeResult", "Metric", "NeighboursConfig", "NeighboursResult",
    "PublishedNumber", "RunResults", "add_entries", "byol_protocol", "cells_of", "charts", "classification_accuracy",
    "compare_corruptions", "compare_with_paper", "comparison_table", "corruption_robustness", "detection_transfer",
    "drift_curve", "estimate", "evaluate_cell", "evaluate_checkpoints", "evaluation_called", "extract_features",
    "fast_protocol", "few_labels", "image_folder", "linear_probe", "linear_probes", "load_run", "load_source",
    "merge_cells", "moco_protocol", "nearest_neighbours", "published", "published_rows", "read_averages", "read_drift",
    "read_results", "register_evaluation", "registered_evaluations", "require_backend", "results_markdown",
    "smoothing_effect", "teacher_dynamics", "top_k_accuracy", "write_averages_report", "write_report", "write_results",
]  # fmt: skip
