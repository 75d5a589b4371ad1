"""What would stop a pipeline later, found before it starts."""

import tempfile
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from sts_core import CheckpointError, StsError
from sts_methods import (
    DataConfig,
    DatasetRecord,
    InitialWeights,
    Split,
    build_backbone,
    dataset_record,
    evaluation_data,
    load_initial_,
    method_record,
)
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.config.run_folder import newest_meta, run_folders
from sts_pipelines.errors import UsageError
from sts_pipelines.evaluation.record import EvaluationRecord, record_of, records_of
from sts_pipelines.evaluation.run import images_shown
from sts_pipelines.evaluation.settings import images_of
from sts_pipelines.launch.storage import mirror_of


def check_evaluations(pipeline: PipelineConfig) -> None:
    """Raise where an evaluation that is asked for could not follow the training, or be made during it."""
    dataset, during = dataset_record(pipeline.training.data.dataset), pipeline.evaluation.during_training
    _check_labelled(dataset, _on_labelled_images(pipeline), "evaluation.after-training")
    images, ks = None if dataset.class_folders else dataset.num_images, pipeline.evaluation.knn.ks
    if images is not None and "knn" in pipeline.evaluation.after_training and max(ks) > images:
        raise UsageError(
            f"evaluation.knn.ks must be at most the {images:,} training images of {dataset.name}, got {max(ks):,}"
        )
    for record in records_of(pipeline):
        _check_classifier(record, pipeline, "evaluation.after-training")
        if record.check is not None and pipeline.cluster.address is None:  # else the workers may have what it needs
            record.check(pipeline.evaluation)
    if during.every_epochs is not None:
        _check_labelled(dataset, during.evaluations, "evaluation.during-training.evaluations")
        for name in during.evaluations:
            _check_classifier(record_of(name), pipeline, "evaluation.during-training.evaluations")
        if "knn" in during.evaluations and max(ks) > during.num_train:
            raise UsageError(
                f"evaluation.knn.ks must be at most evaluation.during-training.num-train={during.num_train:,}, "
                f"got {max(ks):,}"
            )


def _check_labelled(dataset: DatasetRecord, names: Sequence[str], flag: str) -> None:
    if dataset.labelled is False and names:
        raise UsageError(
            f"{', '.join(names)} need labelled images, and dataset {dataset.name} has none: train on an imagefolder, "
            f"or take them out of {flag} and let sts evaluate show another dataset to the networks"
        )


def _check_classifier(record: EvaluationRecord, pipeline: PipelineConfig, flag: str) -> None:
    method = method_record(pipeline.training.method)
    if record.needs_classifier and method is not None and not method.trains_classifier:
        raise UsageError(
            f"{record.name} measures the classifier that a method trains, and {method.name} trains none: take it "
            f"out of {flag} (linear and knn need no classifier)"
        )


def _on_labelled_images(pipeline: PipelineConfig) -> list[str]:
    """The evaluations asked for that show the dataset's own images."""
    return [record.name for record in records_of(pipeline) if record.shows_dataset]


def check_data(pipeline: PipelineConfig) -> None:
    """Raise, as the dataset would, where files of the training or of an evaluation are not there, or CIFAR, shards
    or tables are damaged.

    What may be downloaded is left to the workers.
    """
    if pipeline.cluster.address is not None:  # the workers of another cluster see other disks
        return
    data = pipeline.training.data
    _check_split(data, "train")
    if _on_labelled_images(pipeline):
        _check_split(data, "test")
        if dataset_record(data.dataset).labelled is None:
            evaluation_data(data)
    if any(record.name == "knn" for record in records_of(pipeline)):
        _check_neighbours(data, max(pipeline.evaluation.knn.ks))
    check_folders(pipeline)


def check_folders(pipeline: PipelineConfig) -> None:
    """Raise where a folder of images that an evaluation reads is not there."""
    if pipeline.cluster.address is not None:
        return
    for record in records_of(pipeline):
        folder = record.folder(pipeline.evaluation) if record.folder is not None else None
        if folder is not None and not Path(folder).expanduser().is_dir():
            raise UsageError(f"{record.name} needs its images, and {folder} is not a folder: set {record.folder_flag}")


def _check_split(data: DataConfig, split: Split) -> None:
    record = dataset_record(data.dataset)
    unpacked = record.unpacked is not None and data.root is not None and (Path(data.root) / record.unpacked).exists()
    if unpacked or record.opening_checks or not record.in_place(data.root, split):
        data.open(split)


def examine_data(pipeline: PipelineConfig) -> None:
    """Raise where a longer look at the files finds that some are missing or lie where they were unpacked."""
    data = pipeline.training.data
    examine = dataset_record(data.dataset).examine
    if examine is not None and data.root is not None and pipeline.cluster.address is None:
        examine(data.root, ("train", "test") if _on_labelled_images(pipeline) else ("train",))


def _check_neighbours(data: DataConfig, k: int) -> None:
    """Raise where more neighbours are to vote than there are training images, of which no more than k are counted."""
    record = dataset_record(data.dataset)
    if record.class_folders:
        files = (Path(str(data.root)).expanduser() / "train").rglob("*.*")
        num_images = sum(1 for _ in islice(files, k)) or k  # an empty folder is refused elsewhere
    elif record.num_images is not None:
        num_images = record.num_images
    else:
        num_images = len(data.open("train"))
    if k > num_images:
        raise UsageError(f"knn lets {k} training images vote, and there are {num_images}: lower evaluation.knn.ks")


def check_images(pipeline: PipelineConfig, folder: Path) -> None:
    """Raise where the runs in `folder`, whose name does not tell where the data is, were trained on other images."""
    if pipeline.cluster.address is not None:
        return
    data, now = pipeline.training.data, None
    for run in run_folders(str(folder)):
        before = _images_of(run)
        if before is not None and now is None:
            now = data.open("train").fingerprint()
        if before is not None and before != now:
            raise UsageError(
                f"{run} was trained on other images ({before}) than are in {data.root or data.dataset} now ({now}): "
                "restore the dataset, or set another --name"
            )


def check_images_shown(pipeline: PipelineConfig, folder: Path) -> None:
    """Raise where results of the runs in `folder` that are asked for are those of other images at the same place."""
    if pipeline.cluster.address is not None:
        return
    data, now = pipeline.training.data, None
    for run in run_folders(str(folder)):
        before = images_of(run, pipeline)
        if before is None:
            continue
        try:
            now = now or images_shown(evaluation_data(data))
        except StsError:  # the images are gone; where a result is missing, its evaluation says so
            return
        if before != now:
            raise UsageError(
                f"{run} was evaluated on other images ({before}) than are in {data.root or data.dataset} now ({now}): "
                f"restore the dataset, or remove {run / 'results.json'} to measure again"
            )


def _images_of(run: Path) -> str | None:
    """The fingerprint of the images that a run was trained on."""
    images: str | None = newest_meta(run).get("images")
    return images


def initial_weights(pipeline: PipelineConfig) -> InitialWeights | None:
    """The trained weights that the pipeline starts from, after loading them into its backbone; None if there are none.

    Workers of another cluster see other disks, so what lies in a file is left to them.
    """
    training = pipeline.training
    if training.initial.weights is None or pipeline.cluster.address is not None:
        return None
    name, stem = training.method.backbone, training.method.stem
    return load_initial_(build_backbone(name, stem=stem), training.initial, name=name, stem=stem)


def check_initial_weights(pipeline: PipelineConfig, folder: Path) -> None:
    """Raise where the weights to start from do not fit, or are not those from which the runs in `folder` started."""
    saved = {run: newest_meta(run).get("initial") or {} for run in run_folders(str(folder))}
    before = {
        run: one["sha256"] for run, one in saved.items() if one and one["source"] == pipeline.training.initial.weights
    }
    try:
        now = initial_weights(pipeline)
    except CheckpointError:
        if not before:
            raise
        return  # a run that has begun does not need them any more
    for run, sha256 in before.items():
        if now is not None and now.sha256 != sha256:
            raise UsageError(
                f"{run} started from other weights (sha256 {sha256[:8]}) than are in {now.source} now "
                f"({now.sha256[:8]}): put them back, or set another --name"
            )


def check_storage(pipeline: PipelineConfig, folder: Path) -> None:
    """Raise where a run could not be written."""
    mirror_of(pipeline.cluster.storage_path, folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"cannot write to {folder} ({reason}): free it, or set cluster.storage-path") from error
