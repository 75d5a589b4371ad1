"""The model card of a run's network: what it is, how it is used, what was measured, and the command that trains it."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sts_core import Network, SmoothingConfig
from sts_eval import read_results, results_markdown
from sts_methods import method_record, verify_backbone
from sts_pipelines.config.kinds import plain_of
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.config.run_folder import describe_old_run, newest_meta
from sts_pipelines.config.yaml_text import write_yaml
from sts_pipelines.terminal import caveats

TRAINING = "training.yaml"
"""The config beside the card."""

USE = """```python
import timm

network = timm.create_model("{place}", pretrained=True).eval()
prepare = timm.data.create_transform(**timm.data.resolve_model_data_config(network))
features = network(prepare(image)[None])  # of a PIL image; [1, {width}]
```
"""


def training_yaml(pipeline: PipelineConfig) -> str:
    """The config as others may run it, without the places and services of those who did."""
    plain = {name: value for name, value in plain_of(pipeline).items() if name not in ("cluster", "tracking")}
    places = {"data": {"root": None}, "initial": {"weights": shown(pipeline.training.initial.weights)}}
    return write_yaml(plain | {section: plain[section] | hidden for section, hidden in places.items()})


def shown(source: str | None) -> str | None:
    """A name of weights as it is, a path without its folders."""
    return source if source is None or source.startswith("hf-hub:") else Path(source).name


def model_card(folder: Path, pipeline: PipelineConfig, network: Network, *, name: str, place: str) -> str:
    """The text of README.md for a network of a finished run; `place` is what timm is to load it from."""
    manifest = verify_backbone(folder / network)
    sections = {
        "Use": USE.format(place=place, width=manifest["num_features"]),
        "Results": _results(folder),
        "Training": "\n".join(_training(folder, pipeline, manifest)),
    }
    head = [*_metadata(pipeline), f"# {name}", "", _summary(pipeline, network, manifest), ""]
    return "\n".join([*head, *(f"## {title}\n\n{text}" for title, text in sections.items())])


def _metadata(pipeline: PipelineConfig) -> Iterator[str]:
    """The front matter by which the hub files a network; its licence is for those to add who publish it."""
    tags = ("image-feature-extraction", "timm", "sts", _method(pipeline))
    yield from ("---", "library_name: timm", "pipeline_tag: image-feature-extraction", "tags:")
    yield from (f"- {tag}" for tag in tags)
    yield "---"


def _method(pipeline: PipelineConfig) -> str:
    record = method_record(pipeline.training.method)
    assert record is not None, "pipelines train registered methods"
    return record.name


def _summary(pipeline: PipelineConfig, network: Network, manifest: Mapping[str, Any]) -> str:
    training = pipeline.training
    length = f"{training.epochs} epochs" if training.epochs is not None else f"{training.steps:,} steps"
    return (
        f"A {manifest['backbone']} that makes {manifest['num_features']} features of an image: the {network} of "
        f"{_method(pipeline)}, trained on {training.data.dataset} for {length} by STS."
    )


def _results(folder: Path) -> str:
    if not (folder / "results.json").is_file() or not (tables := results_markdown(folder, describe=describe_old_run)):
        return "Nothing has been measured.\n"
    told = [f"- {line}" for line in caveats({folder.name: read_results(folder).entries})]
    return "\n".join([tables.replace("\n## ", "\n### ").removeprefix("## Results\n\n"), "", *told, ""])


def _training(folder: Path, pipeline: PipelineConfig, manifest: Mapping[str, Any]) -> Iterator[str]:
    training = pipeline.training
    yield f"- Teacher: {_smoothing(training.smoothing, training.momentum_schedule)}."
    images = newest_meta(folder).get("images") or training.data.dataset
    mean, std = training.data.statistics
    yield f"- Images: {images}; views ({training.data.views}) of {training.data.image_size} pixels."
    yield f"- Normalised by mean {mean} and deviation {std}."
    initial = manifest.get("initial")
    start = f"{shown(initial['source'])}, sha256 {initial['sha256']}" if initial else "random weights"
    yield f"- {manifest['step']:,} steps of {training.global_batch_size} images, seed {training.seed}, from {start}."
    root = "" if training.data.root is None else " --data.root YOUR_IMAGES"
    yield f"- All settings are in {TRAINING}: `sts run {TRAINING}{root}` trains it again.\n"


def _smoothing(smoothing: SmoothingConfig, schedule: str) -> str:
    """With a probability p a unit of the teacher stays, otherwise it takes a step of the moving average."""
    units = f"units are {smoothing.granularity}s, buffers: {smoothing.buffers}"
    return (
        f"m = {smoothing.momentum} ({schedule}), p = {smoothing.preserve_probability}; {units}. The moving average of "
        f"the same expected pull has m = {smoothing.effective_momentum:.6g}"
    )
