"""FixMatch: the paper's semi-supervised table, and the same family on small budgets."""

from typing import TYPE_CHECKING, Literal

from sts_pipelines.catalog.families import in_small
from sts_pipelines.catalog.registry import named

if TYPE_CHECKING:
    from sts_pipelines.config.pipeline import PipelineConfig

# (m, p): .999 is google's EMA; p = .5 the paper's.
PAPER = {"tma": (0.999, 0.0), "sts": (0.999, 0.5)}
SMALL = {"none": (0.0, 0.0), "se": (0.0, 0.95), "tma": (0.95, 0.0), "sts": (0.95, 0.5)}
NUM_GPUS = {"cifar10": 1, "cifar100": 4}
LABELS: dict[Literal["cifar10", "cifar100"], tuple[int, ...]] = {
    "cifar10": (20, 40, 250, 4000),
    "cifar100": (200, 400, 2500, 10000),
}


def _paper(dataset: Literal["cifar10", "cifar100"], labels: int, smoothing: str) -> None:
    name = f"fixmatch-{dataset}-{labels}-{smoothing}"
    gpus = NUM_GPUS[dataset]
    hardware = f"{gpus} GPU{'s' * (gpus > 1)}"
    row = "FixMatch (STS)" if smoothing == "sts" else "FixMatch"
    number = ("few-labels", row, f"CIFAR-{dataset.removeprefix('cifar')} {labels}")
    paper = f"FixMatch: {dataset}, {labels} labels, {smoothing}"

    @named(name, paper=paper, hardware=hardware, published=number)
    def build() -> "PipelineConfig":
        from sts_pipelines.catalog.configs import fixmatch_cifar

        m, p = PAPER[smoothing]
        return fixmatch_cifar(name, dataset=dataset, labels=labels, m=m, p=p)

    build.__doc__ = f"""FixMatch on {dataset} with {labels} labels, 2^20 steps, {smoothing}.

    sts run {name} --data.root /data/{dataset}

    Hardware: {hardware}. Time:
    {{time}}.
    Expect {{expected}}.
    Few labels spread by points from seed to seed: run at least five (--seed).
    """


for _dataset, _counts in LABELS.items():
    for _labels in _counts:
        for _smoothing in PAPER:
            _paper(_dataset, _labels, _smoothing)


in_small(
    "fixmatch",
    "FixMatch",
    SMALL,
    hours={"digits": "0.02", "cifar10": "0.2"},
    labels={"digits": 40, "cifar10": 250},
    paper="FixMatch",
)
