"""Sweeps: the p x m figure and the granularity table, on ImageNet and in small."""

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from sts_pipelines.catalog.families import EIGHT_GPUS, TWO_CORES
from sts_pipelines.catalog.fixmatch import LABELS, NUM_GPUS
from sts_pipelines.catalog.registry import named, note_on_se

if TYPE_CHECKING:
    from sts_pipelines.config.pipeline import PipelineConfig
    from sts_pipelines.config.sweep import SweepConfig

METRIC = "linear/teacher/top1"  # what the paper's figure and table show
# The granularity table: SE and STS at p = .7 and .999 of the BYOL runs, each by layer, channel and neuron.
GRANULARITIES: tuple[Literal["layer", "channel", "neuron"], ...] = ("layer", "channel", "neuron")


def _base(dataset: Literal["imagenet", "digits", "cifar10"], name: str) -> "PipelineConfig":
    from sts_pipelines.catalog.configs import ONE_CPU, byol_imagenet, byol_small

    if dataset == "imagenet":
        return byol_imagenet(name, epochs=200, m=0.99, p=0.7)
    # One worker per trial, and as many trials at a time as there are cores.
    return replace(byol_small(name, dataset=dataset, m=0.9, p=0.7), cluster=ONE_CPU)


def _p_by_m(dataset: Literal["imagenet", "digits", "cifar10"], hardware: str, hours: str | None = None) -> None:
    name = f"byol-{dataset}-p-by-m"

    @named(name, paper="p x m figure", hardware=hardware, hours=hours, verb="sweep")
    def build() -> "SweepConfig":
        from sts_pipelines.config.sweep import GridConfig, SweepConfig

        # On ImageNet a trial takes the whole machine; cells of seconds or minutes share the start of their workers.
        alone = dataset == "imagenet"
        grid = GridConfig(metric=METRIC, max_concurrent=1 if alone else None, cells_per_trial=1 if alone else 8)
        return SweepConfig(pipeline=_base(dataset, name), sweep=grid)

    build.__doc__ = f"""BYOL for every m in 0, .9, .99, .999 and p in 0, .1, .3, .5, .7, .9, .99, .999 on {dataset}.

    sts sweep {name}{_root(dataset)}

    Hardware: {hardware}. Time:{_told(hours)}.
    Expect the best p to fall as m rises (paper): the ridge follows one m_eff.
    """


def _granularity(dataset: Literal["imagenet", "digits", "cifar10"], hardware: str, hours: str | None = None) -> None:
    name = f"byol-{dataset}-granularity"

    @named(name, paper="granularity table", hardware=hardware, hours=hours, verb="sweep")
    def build() -> "SweepConfig":
        from sts_pipelines.catalog.byol import IMAGENET, SMALL
        from sts_pipelines.config.sweep import GridConfig, SweepConfig

        rows = IMAGENET if dataset == "imagenet" else SMALL
        grid = GridConfig(
            cells=(rows["tma"], rows["se"], rows["sts"]),
            granularities=GRANULARITIES,
            metric=METRIC,
            max_concurrent=1,  # the table also compares times
            cells_per_trial=1 if dataset == "imagenet" else 7,
        )
        return SweepConfig(pipeline=_base(dataset, name), sweep=grid)

    se = note_on_se("se") if dataset == "imagenet" else ""
    build.__doc__ = f"""TMA, and SE and STS by layer, channel and neuron, on {dataset}: accuracy and relative time.

    sts sweep {name}{_root(dataset)}

    Hardware: {hardware}. Time:{_told(hours)}.
    Expect on ImageNet SE 67.8 / 70.8 / 71.6, STS 72.7 / 72.8 / 72.8 (paper); the
    paper's neuron-wise masks cost 1.8 times the time of TMA, ours are meant to cost nothing.{se}
    """


def _fixmatch(
    dataset: Literal["cifar10", "cifar100", "digits"], labels: int, hardware: str, hours: str | None = None
) -> None:
    name = "fixmatch-digits-p-by-m" if dataset == "digits" else f"fixmatch-{dataset}-{labels}-p-by-m"

    @named(name, paper="FixMatch over the p x m grid", hardware=hardware, hours=hours, verb="sweep")
    def build() -> "SweepConfig":
        from sts_pipelines.catalog.configs import fixmatch_cifar, fixmatch_small
        from sts_pipelines.config.sweep import GridConfig, SweepConfig

        if dataset == "digits":
            base = fixmatch_small(name, dataset="digits", labels=labels, m=0.95, p=0.5)
        else:
            base = fixmatch_cifar(name, dataset=dataset, labels=labels, m=0.999, p=0.5)
        return SweepConfig(pipeline=base, sweep=GridConfig(one_student=True, metric="few-labels/teacher/top1"))

    build.__doc__ = f"""FixMatch on {dataset} with {labels} labels: all 32 teachers of the grid from one training run.

    sts sweep {name}{_root(dataset)}

    The student labels itself, so the teacher never influences training and one student serves every teacher.
    Hardware: {hardware}. Time:{_told(hours)}.
    Expect differences within the spread of seeds: the paper's +6.6 at 20 labels
    cannot come from smoothing a teacher that does not teach.
    """


def _told(hours: str | None) -> str:
    return "\n    {time}" if hours is None else f" {hours} hours"


def _root(dataset: str) -> str:
    return {"imagenet": " --data.root /data/imagenet", "digits": ""}.get(dataset, " --data.root data")


_p_by_m("imagenet", EIGHT_GPUS)
_p_by_m("digits", TWO_CORES, "0.3")
_p_by_m("cifar10", TWO_CORES, "8")
_granularity("imagenet", EIGHT_GPUS)
_granularity("digits", TWO_CORES, "0.1")
_granularity("cifar10", TWO_CORES, "2")
for _dataset, _counts in LABELS.items():
    _gpus = NUM_GPUS[_dataset]
    for _labels in _counts:
        _fixmatch(_dataset, _labels, f"{_gpus} GPU{'s' * (_gpus > 1)}")
_fixmatch("digits", 40, TWO_CORES, "0.05")
