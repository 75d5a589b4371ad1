"""Pipelines that differ in their method or data only: self-supervised rows on ImageNet, and all methods in small."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sts_pipelines.catalog.registry import named, note_on_se

if TYPE_CHECKING:
    from sts_pipelines.config.pipeline import PipelineConfig

EIGHT_GPUS = "8 GPUs, 11 GB each"
TWO_CORES = "2 CPU cores"

Teachers = Mapping[str, tuple[float, float]]
"""(m, p) by the name of the smoothing."""


def imagenet_rows(method: str, title: str, teachers: Teachers, *, about: str, hardware: str) -> None:
    """The paper's rows of 200 epochs, one for each of `teachers`; `about` says what else is known of them."""
    for smoothing in teachers:
        _imagenet(method, title, smoothing, teachers[smoothing], about, hardware)


def _imagenet(method: str, title: str, smoothing: str, teacher: tuple[float, float], about: str, hardware: str) -> None:
    name, paper = f"{method}-imagenet-200ep-{smoothing}", title.removesuffix(" v2")
    table = "effect of SE" if smoothing in ("none", "se") else "effect of STS"
    row = f"{paper} none" if smoothing == "none" else f"{paper} {smoothing.upper()}"
    number = (table.lower().replace(" ", "-"), row, "top-1")

    @named(name, paper=f"{table}: {paper}, {smoothing}", hardware=EIGHT_GPUS, published=number)
    def build() -> "PipelineConfig":
        return _made(f"{method}_imagenet", name, teacher, epochs=200)

    build.__doc__ = f"""{title}, ResNet-50, 200 epochs of ImageNet, {smoothing}.

    sts run {name} --data.root /data/imagenet

    Hardware: {hardware}. {about}{note_on_se(smoothing)}
    """


def in_small(
    method: str,
    title: str,
    teachers: Teachers,
    *,
    hours: Mapping[str, str],
    labels: Mapping[str, int] | None = None,
    paper: str = "effect of SE and STS",
) -> None:
    """The method with each of `teachers` on every dataset that `hours` names; `labels` are those of each dataset."""
    for dataset in hours:
        for smoothing in teachers:
            known = {} if labels is None else {"labels": labels[dataset]}
            _small(method, title, dataset, smoothing, teachers[smoothing], hours[dataset], known, paper)


def _small(
    method: str,
    title: str,
    dataset: str,
    smoothing: str,
    teacher: tuple[float, float],
    hours: str,
    labels: Mapping[str, int],
    paper: str,
) -> None:
    name = f"{method}-{dataset}-{smoothing}"

    @named(name, paper=f"{paper}, in small: {smoothing}", hardware=TWO_CORES, hours=hours)
    def build() -> "PipelineConfig":
        return _made(f"{method.replace('-', '_')}_small", name, teacher, dataset=dataset, **labels)

    root = "" if dataset == "digits" else " --data.root data"
    told = "".join(f" with {count} labels" for count in labels.values())
    outcome = "more than the labels alone give" if labels else "a teacher that beats random features"
    build.__doc__ = f"""{title} on {dataset}{told}, a small ResNet, {smoothing}.

    sts run {name}{root}

    Hardware: two CPU cores. Time: about {float(hours) * 60:.0f} minutes. Expect {outcome}.
    """


def _made(config: str, name: str, teacher: tuple[float, float], **settings: Any) -> "PipelineConfig":
    from sts_pipelines.catalog import configs  # here, because it imports torch

    made: PipelineConfig = getattr(configs, config)(name, m=teacher[0], p=teacher[1], **settings)
    return made
