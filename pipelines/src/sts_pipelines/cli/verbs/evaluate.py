"""sts evaluate: measure the student and the teacher of finished runs.

Results are added to <run>/results.json; an evaluation that is there already under the same settings is not repeated.
"""

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sts_pipelines.launch.job import Job

EXAMPLES = """  sts evaluate runs/byol-imagenet-200ep-sts-1a2b3c4d --only linear,imagenet-c
  sts evaluate runs/byol-imagenet-200ep-sts-1a2b3c4d --only voc --evaluation.voc.data-root /data/VOCdevkit
  sts evaluate runs/byol-imagenet-200ep-tma-5e6f7a8b runs/byol-imagenet-200ep-sts-1a2b3c4d --only imagenet-c  # one pass
  sts evaluate runs/byol-digits-sts-1a2b3c4d --only linear --evaluation.linear.solver lbfgs
  sts evaluate runs/byol-cifar10-sts-1a2b3c4d --only imagenet-c --cluster.num-workers 2   # by Ray Train workers"""
TAKES_OVERRIDES = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run folder, one that holds run folders, or a URI")
    parser.add_argument("--only", help="comma-separated evaluations, such as linear,knn (default: config's)")
    parser.add_argument("--networks", help="comma-separated: teacher, student, untrained (default: config's)")


def run(arguments: argparse.Namespace, overrides: list[str]) -> int:
    for option, flag in (("only", "--evaluation.after-training"), ("networks", "--evaluation.networks")):
        if getattr(arguments, option):
            overrides = [*overrides, flag, getattr(arguments, option)]
    evaluate_folders(arguments.runs, overrides)
    return 0


def evaluate_folders(folders: Sequence[str], overrides: Sequence[str]) -> None:
    """Evaluate the networks of runs and print their table.

    By Ray Train workers where `--cluster.num-workers` asks for them and where the run had several GPUs, since what was
    trained on many GPUs is large; else in this process.
    """
    from sts_pipelines.launch.storage import brought_here

    with brought_here(folders) as places:
        _evaluate(places, overrides)


def _evaluate(folders: Sequence[str], overrides: Sequence[str]) -> None:
    from sts_pipelines.config.run_folder import run_folders
    from sts_pipelines.launch.driver import launch
    from sts_pipelines.terminal import print_table

    jobs = [_evaluation_of(run, overrides) for folder in folders for run in run_folders(folder)]
    for _, same in itertools.groupby(jobs, key=lambda job: job.pipeline.cluster):
        group = list(same)
        launch(group, name=group[0].label, folder=group[0].folder)
    labels = [job.label for job in jobs]
    alike = {label for label in labels if labels.count(label) > 1}  # variants of several comparisons
    print_table(
        {f"{job.folder.parent.name}/{job.label}" if job.label in alike else job.label: job.folder for job in jobs}
    )


def _evaluation_of(folder: Path, overrides: Sequence[str]) -> "Job":
    """The job that evaluates a finished run and trains nothing."""
    from sts_pipelines.config.plain import to_dict
    from sts_pipelines.config.run_folder import read_run
    from sts_pipelines.diagnostics.preflight import check_evaluations, check_folders, check_images_shown
    from sts_pipelines.errors import UsageError
    from sts_pipelines.launch.job import Job

    pipeline = read_run(folder, overrides)
    before = to_dict(read_run(folder).training)
    if to_dict(pipeline.training) | {"data": None} != before | {"data": None}:
        raise UsageError("a finished training cannot be changed: override evaluation.* and data.* only")
    check_evaluations(pipeline)
    check_folders(pipeline)
    check_images_shown(pipeline, folder)
    asked = any(override.replace("_", "-").startswith("--cluster.num-workers") for override in overrides)
    if not asked and not (pipeline.cluster.use_gpu and pipeline.cluster.num_workers > 1):
        pipeline = replace(pipeline, cluster=replace(pipeline.cluster, num_workers=0, min_workers=None))
    path = folder.absolute()
    return Job(label=path.name, pipeline=pipeline, folder=path, train=False)
