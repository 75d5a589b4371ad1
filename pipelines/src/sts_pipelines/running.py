"""What the verbs do once a command is understood: run, evaluate, export and report, in terms of run folders."""

from collections.abc import Sequence
from pathlib import Path

from sts_pipelines.errors import UsageError
from sts_pipelines.evaluation import evaluate_run
from sts_pipelines.flags import apply_flags
from sts_pipelines.launcher import Job, launch
from sts_pipelines.pipeline import ComparisonConfig, PipelineConfig
from sts_pipelines.schema import from_dict, to_dict
from sts_pipelines.storage import mirror_of
from sts_pipelines.summary import print_table
from sts_pipelines.yaml_text import read_yaml


def run_recipe(recipe: PipelineConfig | ComparisonConfig) -> None:
    """Train, evaluate, print one table and write the report."""
    jobs = jobs_of(recipe)
    launch(jobs, name=recipe.run_name, folder=recipe.folder)
    print_table({job.label: job.folder for job in jobs})
    report_folders([str(job.folder) for job in jobs], output=str(recipe.folder / "report"))
    mirror = mirror_of(jobs[0].pipeline.cluster.storage_path, recipe.folder)
    if mirror is not None:
        mirror.push()


def jobs_of(recipe: PipelineConfig | ComparisonConfig) -> list[Job]:
    """A pipeline is one job in its own folder; a comparison has one job, in a folder inside its own, per variant."""
    if isinstance(recipe, PipelineConfig):
        return [Job(label=recipe.name, pipeline=recipe, folder=recipe.folder)]
    return [
        Job(label=label, pipeline=pipeline, folder=recipe.folder / label)
        for label, pipeline in recipe.pipelines.items()
    ]


def read_run(folder: str, overrides: Sequence[str] = ()) -> PipelineConfig:
    """The pipeline that made a run folder, with overrides."""
    path = Path(folder) / "config.yaml"
    if not path.is_file():
        raise UsageError(f"{folder} is not a run folder (it has no config.yaml): pass one that sts run made")
    plain = read_yaml(path.read_text(encoding="utf-8"), source=str(path))
    plain.pop("kind", None)
    return from_dict(PipelineConfig, apply_flags(plain, overrides))


def evaluate_folder(folder: str, overrides: Sequence[str]) -> None:
    """Evaluate the networks of a run and print its table.

    By Ray Train workers where `--cluster.num-workers` asks for them and where the run had several GPUs, since what was
    trained on many GPUs is large; else in this process.
    """
    from sts_methods.runtime import default_device

    pipeline = read_run(folder, overrides)
    before = to_dict(read_run(folder).training)
    if to_dict(pipeline.training) | {"data": None} != before | {"data": None}:
        raise UsageError("a finished training cannot be changed: override evaluation.* and data.* only")
    path = Path(folder).absolute()
    asked = any(override.startswith("--cluster.num-workers") for override in overrides)
    if pipeline.cluster.num_workers > (0 if asked else 1) and (asked or pipeline.cluster.use_gpu):
        launch([Job(label=path.name, pipeline=pipeline, folder=path, train=False)], name=path.name, folder=path)
    else:
        evaluate_run(path, pipeline, device=default_device())
    print_table({Path(folder).name: Path(folder)})


def export_folder(folder: str, *, network: str, to: str, output: str) -> str:
    """Write a backbone in another library's format; says what was written."""
    from sts_methods import export

    source = Path(folder) / f"{network}.safetensors"
    if not source.is_file():
        raise UsageError(f"{folder} has no {network}.safetensors: let sts run finish the training first")
    return str(export(source, output, to=to))  # type: ignore[arg-type]  # argparse has checked the choice


def report_folders(folders: Sequence[str], *, against_paper: bool = False, output: str | None = None) -> None:
    """One report of several runs."""
    from sts_pipelines.reporting import write

    print(write(folders, against_paper=against_paper, output=output))
