"""What would stop a pipeline later, found before it starts."""

from pathlib import Path

from sts_methods import dataset_record, method_record, open_source
from sts_methods.data.batches import evaluation_data
from sts_methods.data.config import DataConfig
from sts_methods.data.sources import Split
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.errors import UsageError
from sts_pipelines.evaluation.record import records_of


def check_evaluations(pipeline: PipelineConfig) -> None:
    """Raise where an evaluation that is asked for could not follow the training."""
    method = method_record(pipeline.training.method)
    dataset = dataset_record(pipeline.training.data.dataset)
    if dataset.labelled is False and (names := _on_labelled_images(pipeline)):
        raise UsageError(
            f"{', '.join(names)} need labelled images, and dataset {dataset.name} has none: train on an imagefolder, "
            "or take them out of evaluation.after-training and let sts evaluate show another dataset to the networks"
        )
    for record in records_of(pipeline):
        if record.needs_classifier and method is not None and not method.trains_classifier:
            raise UsageError(
                f"{record.name} measures the classifier that a method trains, and {method.name} trains none: take it "
                "out of evaluation.after-training (linear and knn need no classifier)"
            )
        if record.check is not None and pipeline.cluster.address is None:  # else the workers may have what it needs
            record.check(pipeline.evaluation)


def _on_labelled_images(pipeline: PipelineConfig) -> list[str]:
    """The evaluations asked for that show the dataset's own images."""
    return [record.name for record in records_of(pipeline) if record.shows_dataset]


def check_data(pipeline: PipelineConfig) -> None:
    """Raise, as the dataset would, where files of the training or of an evaluation that follows are not there.

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
    for record in records_of(pipeline):
        folder = record.folder(pipeline.evaluation) if record.folder is not None else None
        if folder is not None and not Path(folder).is_dir():
            raise UsageError(f"{record.name} needs its images, and {folder} is not a folder: set {record.folder_flag}")


def _check_split(data: DataConfig, split: Split) -> None:
    if not dataset_record(data.dataset).in_place(data.root, split):
        open_source(data.dataset, data.root, split, image_size=data.image_size)
