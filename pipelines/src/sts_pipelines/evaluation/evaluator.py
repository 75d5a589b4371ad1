"""Measuring a finished run: both networks, every evaluation asked for, results added to its results.json.

All ranks call `evaluate_run` and share the work; rank 0 writes. An evaluation that is in results.json already, under
the same settings, is not repeated, so a killed run only does what is missing.
"""

import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import nn

from sts_core.distributed import barrier, gather_lists, rank, world_size
from sts_eval import (
    Features,
    LinearProbeResult,
    RunResults,
    add_entries,
    classification_accuracy,
    evaluate_checkpoints,
    extract_features,
    few_labels,
    image_folder,
    linear_probe,
    nearest_neighbours,
    read_drift,
)
from sts_eval.detection import DetectionConfig, detection_transfer
from sts_methods import build_method, dataset_record, load_backbone
from sts_methods.data.batches import evaluation_data
from sts_methods.runs.checkpoint import CheckpointError, CheckpointStore, read_checkpoint
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.config.plain import digest
from sts_pipelines.config.storage_path import is_uri
from sts_pipelines.errors import UsageError
from sts_pipelines.evaluation.settings import (
    Entries,
    bring_forward,
    detection_settings,
    is_done,
    settings_of,
    write_entries,
)

FEATURES, CELLS = ".features", ".imagenet-c"
"""Where a run folder keeps features and measured cells of ImageNet-C while it is evaluated."""

PROBE_FACTS = ("protocol", "selected_on", "diverged", "cropped_from")
"""What a result on corrupted images says of the linear classifier in front of it."""


def evaluate_run(
    folder: Path,
    pipeline: PipelineConfig,
    *,
    device: torch.device,
    teacher: str | None = None,
    results: Path | None = None,
) -> RunResults | None:
    """Do all evaluations of the config that results.json does not hold yet; the results on rank 0, None elsewhere.

    `teacher` names one of the bank's, whose results go to the folder `results`; the student has its own in the run's.
    """
    results = results or folder
    barrier()  # rank 0 has saved the networks when all ranks are here
    if not (folder / "teacher.safetensors").is_file():
        raise UsageError(f"{folder} has no finished networks: let sts run finish the training first")
    evaluator = _Evaluator(folder, results, pipeline, device, teacher)
    for evaluation in pipeline.evaluation.after_training:
        evaluator.evaluate(evaluation, pipeline.evaluation.networks if teacher is None else ("teacher",))
    if pipeline.training.track_drift and teacher is None and rank() == 0:  # the run's teacher, not one of the bank
        add_entries(results, read_drift(folder, epochs=None).entries(), run=results.name)
    barrier()
    if rank() == 0:
        for name in (FEATURES, CELLS):
            shutil.rmtree(results / name, ignore_errors=True)
    return bring_forward(results, pipeline) if rank() == 0 and (results / "results.json").is_file() else None


def measure_corruptions(runs: Sequence[tuple[Path, PipelineConfig]], *, device: torch.device) -> None:
    """Show corrupted images to the networks of several runs in one pass; `evaluate_run` finds the outcomes.

    Runs of other settings than the first are left to themselves.
    """
    from sts_pipelines.evaluation.corruptions import measure_cells

    first = settings_of("imagenet-c", runs[0][1])
    evaluators = [_Evaluator(f, f, p, device, None) for f, p in runs if settings_of("imagenet-c", p) == first]
    wanted = [(e, e.missing("imagenet-c", e.config.networks)) for e in evaluators]
    groups = {e.cells(networks): e.with_probes(networks) for e, networks in wanted if networks}
    if len(groups) > 1:
        one = evaluators[0]
        measure_cells(groups, one.pipeline.training.data, one.config, classes=one.data[1].classes, device=device)


class _Evaluator:
    """One run under evaluation; features are computed once per network, whoever needs them."""

    def __init__(
        self, folder: Path, results: Path, pipeline: PipelineConfig, device: torch.device, teacher: str | None
    ) -> None:
        self.folder, self.results, self.pipeline, self.device = folder, results, pipeline, device
        self.teacher = teacher
        self.config = pipeline.evaluation
        # Of ImageNet 10 GB per network: in a file that all ranks map, and that a killed evaluation goes on with. With
        # a URI for storage the ranks may share no folder, and each holds all features in memory.
        self._cache = None if is_uri(pipeline.cluster.storage_path) else results / FEATURES
        self._features: dict[str, tuple[Features, Features]] = {}
        self._probes: dict[str, LinearProbeResult] = {}
        self._data: tuple[Any, Any] | None = None

    def evaluate(self, evaluation: str, networks: Sequence[str]) -> None:
        """Measure those of `networks` that have no result yet, together where the images cost more than the network."""
        alone: Mapping[str, Callable[[str], Entries]] = {"linear": self._linear, "knn": self._knn, "voc": self._voc}
        missing = self.missing(evaluation, networks)
        if evaluation in alone:
            for network in missing:
                write_entries(self.results, alone[evaluation](network), self.pipeline)
        elif missing:
            together = self._few_labels if evaluation == "few-labels" else self._imagenet_c
            write_entries(self.results, together(missing), self.pipeline)

    def missing(self, evaluation: str, networks: Sequence[str]) -> list[str]:
        """The networks without a result under these settings."""
        settings = settings_of(evaluation, self.pipeline)
        return [network for network in networks if not is_done(self.results, evaluation, network, settings)]

    def with_probes(self, networks: Sequence[str]) -> dict[str, nn.Module]:
        """Backbones with their linear classifiers."""
        return {name: self._probe(name).with_backbone(self._backbone(name)).to(self.device) for name in networks}

    def cells(self, networks: Sequence[str]) -> Path:
        """Where the outcomes of these networks on ImageNet-C are kept until all cells are done."""
        return self.results / CELLS / "-".join([settings_of("imagenet-c", self.pipeline), *networks])

    @property
    def data(self) -> tuple[Any, Any]:
        if self._data is None:
            self._data = evaluation_data(self.pipeline.training.data)
        return self._data

    def _backbone(self, network: str) -> nn.Module:
        name = f"bank/{self.teacher}" if network == "teacher" and self.teacher else network
        module, _ = load_backbone(self.folder / f"{name}.safetensors")
        return module.to(self.device)

    def _features_of(self, network: str) -> tuple[Features, Features]:
        if network not in self._features:
            backbone = self._backbone(network)
            train, test = (
                extract_features(backbone, split, self.config.features, cache=self._cache, device=self.device)
                for split in self.data
            )
            self._features[network] = (train, test)
        return self._features[network]

    def _linear(self, network: str) -> Entries:
        return self._probe(network).entries(network)

    def _probe(self, network: str) -> LinearProbeResult:
        """The linear classifier; trained by SGD it is kept in the run folder, and goes on from there."""
        if network not in self._probes:
            config = self.config.linear
            state = self.results / f".linear-{network}-{settings_of('linear', self.pipeline)}.pt"
            train, test = self._probe_data() if config.augment else self._features_of(network)
            self._probes[network] = linear_probe(
                train,
                test,
                config,
                backbone=self._backbone(network) if config.augment else None,
                features=self.config.features,
                cache=self._cache,
                state_file=state if config.solver == "sgd" else None,
                device=self.device,
            )
        return self._probes[network]

    def _probe_data(self) -> tuple[Any, Any]:
        """Images for random crops: whole ones from a folder, else the test's view of the training images."""
        data = self.pipeline.training.data
        train, test = self.data
        if dataset_record(data.dataset).class_folders and data.root is not None:
            train = image_folder(Path(data.root) / "train", image_size=None)
        return train, test

    def _knn(self, network: str) -> Entries:
        return nearest_neighbours(*self._features_of(network), self.config.knn, device=self.device).entries(network)

    def _few_labels(self, networks: Sequence[str]) -> Entries:
        """The classifiers themselves at every checkpoint that was kept, shared out among the ranks."""
        models = self._classifiers(networks)
        records = gather_lists(evaluate_checkpoints(models, self.data[1], self.config.features, device=self.device))
        return [entry for result in few_labels(records) for entry in result.entries()]

    def _classifiers(self, networks: Sequence[str]) -> Iterator[tuple[int, dict[str, nn.Module]]]:
        training = self.pipeline.training
        method = build_method(training.method, seed=training.seed).to(self.device)
        models = {network: method.teacher if network == "teacher" else method.student for network in networks}
        store = CheckpointStore(self.folder / "checkpoints")
        for step, state in readable_checkpoints(store):
            method.load_state_dict(state["method"])
            yield step, models

    def _imagenet_c(self, networks: Sequence[str]) -> Entries:
        """The mean over all corruptions and severities of the backbones with their linear classifiers, in one pass."""
        from sts_pipelines.evaluation.corruptions import corruption_results

        results = corruption_results(
            self.with_probes(networks),
            self.pipeline.training.data,
            self.config,
            classes=self.data[1].classes,
            keep=self.cells(networks),
            device=self.device,
        )
        entries = []
        for network, result in results.items():
            outcomes = f"imagenet-c-{network}-{settings_of('imagenet-c', self.pipeline)}.npz"
            if rank() == 0:
                self.results.mkdir(parents=True, exist_ok=True)
                result.save_outcomes(self.results / outcomes)
            entry = result.results_entry(network=network, outcomes=outcomes)  # type: ignore[arg-type]
            (probe, *_) = self._probe(network).entries(network)
            entries.append({**entry, **{name: probe[name] for name in PROBE_FACTS if name in probe}})
        return entries

    def _voc(self, network: str) -> Entries:
        """The mean over fine-tunings with one seed after the other; all ranks train together."""
        seeds = range(self.config.voc.seed, self.config.voc.seed + self.config.voc_trials)
        trials = [self._detection(network, replace(self.config.voc, seed=seed)) for seed in seeds]
        return [_mean_of_trials(entries) for entries in zip(*trials, strict=True)]

    def _detection(self, network: str, voc: DetectionConfig) -> Entries:
        folder = self.results / f"voc-{network}-{digest(detection_settings(voc))}"
        return detection_transfer(self._backbone(network), voc, folder=folder, device=self.device).entries(
            network=network
        )


def _mean_of_trials(entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One entry for the same number of several trials, whose spread stays in it."""
    values = [entry["value"] for entry in entries]
    common = {name: value for name, value in entries[0].items() if name != "seed"}
    return {**common, "value": fmean(values), "trials": values}


def readable_checkpoints(store: CheckpointStore) -> Iterator[tuple[int, dict[str, Any]]]:
    """This rank's share of the checkpoints; of damaged ones only the newest, which `last` stands for, is an error."""
    steps = store.steps()
    for step in steps[rank() :: world_size()]:
        try:
            state = read_checkpoint(store.path(step))
        except CheckpointError as error:
            if step == steps[-1]:
                raise
            warnings.warn(f"skipped a damaged checkpoint: {error}", UserWarning, stacklevel=2)
        else:
            yield step, state


def measure_of(pipeline: PipelineConfig, metric: str) -> Callable[[nn.Module], dict[str, float]]:
    """A function from the method in training to `{metric: value}`, for knn/NETWORK/top1 and few-labels/NETWORK/top1."""
    evaluation, network, _ = metric.split("/")
    train, test = evaluation_data(pipeline.training.data)
    config = pipeline.evaluation

    def measure(method: Any) -> dict[str, float]:
        if evaluation == "few-labels":
            model = method.teacher if network == "teacher" else method.student
            return {metric: classification_accuracy(model, test, config.features)[1]}
        backbone = method.backbone(network)
        known, asked = (extract_features(backbone, split, config.features) for split in (train, test))
        result = nearest_neighbours(known, asked, config.knn, device=next(backbone.parameters()).device)
        return {metric: result.top1(config.knn.ks[0], config.knn.temperatures[0])}

    return measure
