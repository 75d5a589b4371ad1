"""What the verbs do once a command is understood: run, evaluate, export and report, in terms of run folders."""

import itertools
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sts_eval.report.build import write_report
from sts_eval.results import write_atomically
from sts_pipelines.config.pipeline import ComparisonConfig, PipelineConfig, Recipe, base_of, plain_of
from sts_pipelines.config.plain import to_dict
from sts_pipelines.config.run_folder import read_run, run_folders
from sts_pipelines.config.yaml_text import write_yaml
from sts_pipelines.diagnostics.preflight import check_data, check_evaluations
from sts_pipelines.errors import RunError, UsageError
from sts_pipelines.launch.driver import launch
from sts_pipelines.launch.job import Job, jobs_of
from sts_pipelines.launch.storage import mirror_of
from sts_pipelines.terminal import print_table


def run_recipe(recipe: PipelineConfig | ComparisonConfig) -> None:
    """Train, evaluate, print one table and write the report."""
    prepare(recipe, recipe.folder)
    jobs = jobs_of(recipe)
    try:
        launch(jobs, name=recipe.run_name, folder=recipe.folder)
    except RunError:  # what the other variants have found is still wanted
        _tell(recipe, [job for job in jobs if (job.folder / "results.json").is_file()])
        raise
    _tell(recipe, jobs)


def _tell(recipe: PipelineConfig | ComparisonConfig, jobs: Sequence[Job]) -> None:
    if not jobs:
        return
    print_table({job.label: job.folder for job in jobs})
    report_folders([str(job.folder) for job in jobs], output=str(recipe.folder / "report"))
    mirror = mirror_of(jobs[0].pipeline.cluster.storage_path, recipe.folder)
    if mirror is not None:
        mirror.push()


def prepare(recipe: Recipe, folder: Path) -> None:
    """Refuse what could not run to its end, and leave the config in a folder of several runs; each run has its own."""
    check_evaluations(base_of(recipe))
    check_data(base_of(recipe))
    if not isinstance(recipe, PipelineConfig):
        write_atomically(folder / "config.yaml", write_yaml(plain_of(recipe)))


def evaluate_folders(folders: Sequence[str], overrides: Sequence[str]) -> None:
    """Evaluate the networks of runs and print their table.

    By Ray Train workers where `--cluster.num-workers` asks for them and where the run had several GPUs, since what was
    trained on many GPUs is large; else in this process.
    """
    jobs = [_evaluation_of(run, overrides) for folder in folders for run in run_folders(folder)]
    for _, same in itertools.groupby(jobs, key=lambda job: job.pipeline.cluster):
        group = list(same)
        launch(group, name=group[0].label, folder=group[0].folder)
    labels = [job.label for job in jobs]
    alike = {label for label in labels if labels.count(label) > 1}  # variants of several comparisons
    print_table(
        {f"{job.folder.parent.name}/{job.label}" if job.label in alike else job.label: job.folder for job in jobs}
    )


def _evaluation_of(folder: Path, overrides: Sequence[str]) -> Job:
    """The job that evaluates a finished run and trains nothing."""
    pipeline = read_run(folder, overrides)
    before = to_dict(read_run(folder).training)
    if to_dict(pipeline.training) | {"data": None} != before | {"data": None}:
        raise UsageError("a finished training cannot be changed: override evaluation.* and data.* only")
    check_evaluations(pipeline)
    asked = any(override.replace("_", "-").startswith("--cluster.num-workers") for override in overrides)
    if not asked and not (pipeline.cluster.use_gpu and pipeline.cluster.num_workers > 1):
        pipeline = replace(pipeline, cluster=replace(pipeline.cluster, num_workers=0, min_workers=None))
    path = folder.absolute()
    return Job(label=path.name, pipeline=pipeline, folder=path, train=False)


def export_folder(folder: str, *, network: str, to: str, output: str) -> str:
    """Write a backbone in another library's format; says what was written."""
    from sts_methods import export

    (run, *others) = run_folders(folder)
    if others:
        names = ", ".join(one.name for one in (run, *others))
        raise UsageError(f"export writes one network, {folder} holds several runs: pass one of its folders {names}")
    source = run / f"{network}.safetensors"
    if not source.is_file():
        raise UsageError(f"{folder} has no {network}.safetensors: let sts run finish the training first")
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=Path(output).parent).close()  # an OSError now, and not one of the library's own later
    return str(export(source, output, to=to))  # type: ignore[arg-type]  # argparse has checked the choice


def report_folders(folders: Sequence[str], *, against_paper: bool = False, output: str | None = None) -> None:
    """One report of several runs."""
    runs = [run for folder in folders for run in run_folders(folder, "*/config.*")]
    target = Path(output) if output else Path(folders[0]) / "report"
    print(f"report: {write_report(runs, target, against_paper=against_paper)[1]}")
