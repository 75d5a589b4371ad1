"""ImageNet-C: accuracy on corrupted images of the backbones with their linear classifiers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from sts_core.distributed import rank
from sts_eval import GeneratedCorruptions, evaluation_called
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.config.plain import to_dict
from sts_pipelines.evaluation import corruptions
from sts_pipelines.evaluation.record import Entries, EvaluationRecord, register_evaluation
from sts_pipelines.evaluation.records import linear
from sts_pipelines.evaluation.run import EvaluatedRun
from sts_pipelines.evaluation.settings import is_done, settings_of

SCRATCH = ".imagenet-c"
"""Where a run folder keeps measured cells until all are done."""

PROBE_FACTS = ("protocol", "selected_on", "diverged", "cropped_from")
"""What a result on corrupted images says of the linear classifier in front of it."""


def measure(run: EvaluatedRun, networks: Sequence[str]) -> Entries:
    """The mean over all corruptions and severities, of all networks in one pass."""
    results = corruptions.corruption_results(
        _with_probes(run, networks),
        run.pipeline.training.data,
        run.config,
        classes=run.data[1].classes,
        keep=_cells(run, networks),
        device=run.device,
    )
    entries = []
    for network, result in results.items():
        outcomes = f"{RECORD.name}-{network}-{settings_of(RECORD.name, run.pipeline)}.npz"
        if rank() == 0:
            run.results.mkdir(parents=True, exist_ok=True)
            result.save_outcomes(run.results / outcomes)
        entry = result.results_entry(network=network, outcomes=outcomes)  # type: ignore[arg-type]
        (probe, *_) = linear.probes_of(run, [network])[network].entries(network)
        entries.append({**entry, **{name: probe[name] for name in PROBE_FACTS if name in probe}})
    return entries


def _with_probes(run: EvaluatedRun, networks: Sequence[str]) -> dict[str, nn.Module]:
    """Backbones with their linear classifiers."""
    probes = linear.probes_of(run, networks)
    return {name: probe.with_backbone(run.backbone(name)).to(run.device) for name, probe in probes.items()}


def _cells(run: EvaluatedRun, networks: Sequence[str]) -> Path:
    """Where the outcomes of these networks are kept until all cells are done."""
    return run.results / SCRATCH / "-".join([settings_of(RECORD.name, run.pipeline), *networks])


def share(runs: Sequence[EvaluatedRun]) -> None:
    """Show each corrupted image to the networks of all runs; `measure` finds the outcomes."""
    settings = settings_of(RECORD.name, runs[0].pipeline)
    groups = {}
    for run in runs:
        missing = [name for name in run.config.networks if not is_done(run.results, RECORD.name, name, settings)]
        if missing:
            groups[_cells(run, missing)] = _with_probes(run, missing)
    if len(groups) > 1:
        one = runs[0]
        data, classes = one.pipeline.training.data, one.data[1].classes
        corruptions.measure_cells(groups, data, one.config, classes=classes, device=one.device)


def settings(pipeline: PipelineConfig) -> dict[str, Any]:
    """The images, and the protocol of the classifiers."""
    config = pipeline.evaluation
    images: dict[str, Any] = {"released": config.imagenet_c_root, "severities": list(config.severities)}
    if config.imagenet_c_root is None:
        images["generator"] = GeneratedCorruptions.generator
    return {"linear": to_dict(config.linear), **images}


RECORD = register_evaluation(
    EvaluationRecord(
        about=evaluation_called("imagenet-c"),
        measure=measure,
        settings=settings,
        together=True,
        folder=lambda config: config.imagenet_c_root,
        folder_flag="--evaluation.imagenet-c-root",
        scratch=SCRATCH,
        share=share,
    )
)
