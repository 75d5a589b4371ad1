"""MoCo v2: the paper's rows on ImageNet, and the same family on small images."""

from typing import TYPE_CHECKING

from sts_pipelines.catalog.registry import named, note_on_se

if TYPE_CHECKING:
    from sts_pipelines.catalog.configs import Dataset
    from sts_pipelines.config.pipeline import PipelineConfig

EIGHT_GPUS = "8 GPUs, 11 GB each"
HOURS = "53 on V100"  # MoCo's README, 200 epochs on 8 V100

# (m, p): m = .999 is MoCo v2's, p = .5 the paper's; for SE see `note_on_se`.
IMAGENET = {"none": (0.0, 0.0), "se": (0.0, 0.999), "tma": (0.999, 0.0), "sts": (0.999, 0.5)}
# A key of the short queue is a few steps old, so the teacher may forget faster.
SMALL = {"none": (0.0, 0.0), "se": (0.0, 0.97), "tma": (0.97, 0.0), "sts": (0.97, 0.5)}


def _imagenet(smoothing: str) -> None:
    name = f"moco-imagenet-200ep-{smoothing}"
    table = "effect of SE" if smoothing in ("none", "se") else "effect of STS"
    row = "MoCo none" if smoothing == "none" else f"MoCo {smoothing.upper()}"
    number = (table.lower().replace(" ", "-"), row, "top-1")

    @named(name, paper=f"{table}: MoCo, {smoothing}", hardware=EIGHT_GPUS, hours=HOURS, published=number)
    def build() -> "PipelineConfig":
        from sts_pipelines.catalog.configs import moco_imagenet

        m, p = IMAGENET[smoothing]
        return moco_imagenet(name, epochs=200, m=m, p=p)

    build.__doc__ = f"""MoCo v2, ResNet-50, 200 epochs of ImageNet, {smoothing}.

    sts run {name} --data.root /data/imagenet

    Hardware: {EIGHT_GPUS}. Time: 53 hours on 8 V100 (MoCo's README). Expect {{expected}}.
    Five runs of MoCo itself spread by .16 (sample deviation), so one run decides nothing.{note_on_se(smoothing)}
    """


for _smoothing in IMAGENET:
    _imagenet(_smoothing)


def _small(dataset: "Dataset", smoothing: str, hours: str) -> None:
    name = f"moco-{dataset}-{smoothing}"

    @named(name, paper=f"effect of SE and STS, in small: {smoothing}", hardware="2 CPU cores", hours=hours)
    def build() -> "PipelineConfig":
        from sts_pipelines.catalog.configs import moco_small

        m, p = SMALL[smoothing]
        return moco_small(name, dataset=dataset, m=m, p=p)

    root = "" if dataset == "digits" else " --data.root data"
    build.__doc__ = f"""MoCo on {dataset}, a small ResNet, {smoothing}.

    sts run {name}{root}

    Hardware: two CPU cores. Time: about {float(hours) * 60:.0f} minutes. Expect a teacher that beats random features.
    """


_SMALL_HOURS: "dict[Dataset, str]" = {"digits": "0.02", "cifar10": "0.2"}
for _small_dataset, _hours in _SMALL_HOURS.items():
    for _smoothing in SMALL:
        _small(_small_dataset, _smoothing, _hours)
