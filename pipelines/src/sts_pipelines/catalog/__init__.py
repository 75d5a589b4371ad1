"""All pipelines by name. Importing this imports neither torch nor ray; building a config does."""

from sts_pipelines.catalog import byol, fixmatch, moco, others, quickstart, sweeps  # noqa: F401 - they enter their names
from sts_pipelines.catalog.registry import CATALOG, Entry
from sts_pipelines.plugins import load_pipelines

load_pipelines()

__all__ = ["CATALOG", "Entry"]
