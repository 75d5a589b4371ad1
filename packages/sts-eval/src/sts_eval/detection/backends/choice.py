"""The choice of a backend and what identifies it in a result."""

import platform
from collections.abc import Mapping
from importlib import metadata

import torch

from sts_eval.detection.backends.detectron2 import Detectron2Detector, require_detectron2
from sts_eval.detection.backends.interface import Detector
from sts_eval.detection.backends.resnet import ResNetShape
from sts_eval.detection.config import DetectionConfig, DetectorBackend
from sts_eval.detection.draws import draw_seed


def require_backend(backend: DetectorBackend) -> None:
    """Raise if `backend` is not installed; torchvision always is."""
    if backend == "detectron2":
        require_detectron2()


def build_detector(config: DetectionConfig, shape: ResNetShape) -> Detector:
    """A detector on the CPU whose new layers depend on the config's seed alone."""
    require_backend(config.backend)
    with torch.random.fork_rng([]):
        torch.default_generator.manual_seed(draw_seed("layers", config.seed))
        if config.backend == "detectron2":
            return Detectron2Detector(config, shape)
        from sts_eval.detection.backends.torchvision import TorchvisionDetector  # torchvision takes seconds

        return TorchvisionDetector(config, shape)


def versions(backend: DetectorBackend) -> Mapping[str, str]:
    """The versions of all that takes part in a result."""
    names = ["torch", "torchvision", "pillow", "numpy"] + (["detectron2"] if backend == "detectron2" else [])
    found = {name: _version(name) for name in names}
    return {"python": platform.python_version(), **found}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:  # used from a checkout
        return str(getattr(__import__(name), "__version__", "unknown"))
