"""Trained weights: read from files of any layout without running code, fetched by name, loaded all or none."""

from sts_core.weights.files import digest_of, load_found_, load_strictly, read_weights, some
from sts_core.weights.pretrained import pretrained_name, pretrained_network

__all__ = [
    "digest_of", "load_found_", "load_strictly", "pretrained_name", "pretrained_network", "read_weights", "some",
]  # fmt: skip
