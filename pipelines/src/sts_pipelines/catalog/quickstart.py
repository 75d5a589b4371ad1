"""The first command of the README."""

from dataclasses import replace
from typing import TYPE_CHECKING

from sts_pipelines.catalog.registry import named

if TYPE_CHECKING:
    from sts_pipelines.config.pipeline import ComparisonConfig


@named("quickstart", paper="effect of SE and STS, in small", hardware="2 CPU cores", hours="0.03")
def quickstart() -> "ComparisonConfig":
    """BYOL on handwritten digits with no smoothing, TMA, SE and STS, by two Ray Train workers (on up to two GPUs).

    sts run quickstart

    Hardware: two CPU cores. Time: about two minutes. Expect one table of linear and k-NN accuracy of both networks
    and of the untrained one that they start from, and a report with plots. The data is embedded; what it shows is that
    the pipeline works, not that STS wins.
    """
    from sts_methods.recipes import self_supervised_teacher
    from sts_pipelines.catalog.configs import byol_small, two_workers
    from sts_pipelines.config.pipeline import ComparisonConfig

    base = replace(byol_small("quickstart", dataset="digits", m=0.9, p=0.7), cluster=two_workers())
    base = replace(base, training=replace(base.training, steps=110))  # five epochs, to stay below three minutes
    base = replace(base, evaluation=replace(base.evaluation, networks=("teacher", "student", "untrained")))
    cells = {"none": (0.0, 0.0), "tma": (0.9, 0.0), "se": (0.0, 0.9), "sts": (0.9, 0.7)}
    variants = {name: self_supervised_teacher(m, p) for name, (m, p) in cells.items()}
    return ComparisonConfig(pipeline=base, variants=variants)
