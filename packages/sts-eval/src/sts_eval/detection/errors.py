"""The exceptions of detection transfer.

StsError
├── VocError                 (ValueError)           a VOC tree that cannot be read as it stands
├── ConversionError          (ValueError)           a backbone whose tensors do not fill the detector
├── DetectionsError          (ValueError)           detections that do not belong to the split they are scored on
├── DivergenceError          (FloatingPointError)   training left the finite numbers
└── BackendMissingError      (ImportError)          an optional backend that is not installed
"""

from sts_core import StsError


class VocError(StsError, ValueError):
    """A VOC tree cannot be read as it stands."""


class ConversionError(StsError, ValueError):
    """A backbone's tensors do not fill the detector."""


class DetectionsError(StsError, ValueError):
    """Detections do not belong to the split they are scored on."""


class DivergenceError(StsError, FloatingPointError):
    """Training left the finite numbers."""


class BackendMissingError(StsError, ImportError):
    """An optional backend is not installed."""
