"""Detection transfer: fine-tune Faster R-CNN R50-C4 from a backbone on VOC07+12 and report AP, AP50 and AP75."""

from sts_eval.detection.average_precision import Detections, VocScores, evaluate_voc
from sts_eval.detection.config import DetectionConfig
from sts_eval.detection.transfer import DetectionResult, detection_transfer
from sts_eval.detection.voc import VOC_CLASSES, VocSplit, read_voc_split

__all__ = [
    "VOC_CLASSES", "DetectionConfig", "DetectionResult", "Detections", "VocScores", "VocSplit", "detection_transfer",
    "evaluate_voc", "read_voc_split",
]  # fmt: skip
