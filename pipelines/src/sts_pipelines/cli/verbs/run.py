"""sts run: train a pipeline or a comparison, evaluate student and teacher, and write a report.

Rerun after any interruption, the same command resumes from the newest intact checkpoint. Any field of the config can be
overridden by a flag of its name; `sts show NAME --flags` lists them.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sts_pipelines.catalog.registry import Entry
    from sts_pipelines.config.kinds import AnyPipeline
    from sts_pipelines.config.pipeline import ComparisonConfig, PipelineConfig
    from sts_pipelines.launch.job import Job

EXAMPLES = """  sts run quickstart
  sts run byol-imagenet-200ep-sts --data.root /data/imagenet --cluster.num-workers 8
  sts run byol-digits-sts --smoothing.momentum 0.9 --smoothing.preserve-probability 0.5 --seed 1
  sts run moco-digits-tma --cluster.num-workers 0
  sts run mine.yaml"""
TAKES_OVERRIDES = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pipeline", help="a name of `sts list` or a YAML file")


def run(arguments: argparse.Namespace, overrides: list[str]) -> int:
    from sts_pipelines.catalog import CATALOG
    from sts_pipelines.cli.resolve import resolve
    from sts_pipelines.config.sweep import SweepConfig
    from sts_pipelines.errors import UsageError

    config = resolve(arguments.pipeline, overrides)
    if isinstance(config, SweepConfig):
        raise UsageError(f"{arguments.pipeline} is a sweep: run it with sts sweep {arguments.pipeline}")
    run_pipeline(config, None if overrides else CATALOG.get(arguments.pipeline))
    return 0


def run_pipeline(config: "PipelineConfig | ComparisonConfig", entry: "Entry | None" = None) -> None:
    """Say what will happen, train, evaluate, print one table and write the report."""
    from sts_pipelines.cli.introduction import introduce
    from sts_pipelines.errors import RunError
    from sts_pipelines.launch.driver import check_machine, launch
    from sts_pipelines.launch.job import jobs_of

    check_and_note(config, config.folder)
    jobs = jobs_of(config)
    check_machine(jobs)
    print(introduce(config, entry), file=sys.stderr, flush=True)
    try:
        launch(jobs, name=config.run_name, folder=config.folder)
    except RunError:  # what the other variants have found is still wanted
        _summarize([job for job in jobs if (job.folder / "results.json").is_file()], config.folder)
        raise
    _summarize(jobs, config.folder)


def check_and_note(config: "AnyPipeline", folder: Path) -> None:
    """Refuse what could not run to its end, and leave the config in a folder of several runs; each run has its own."""
    from sts_core.files import write_atomically
    from sts_pipelines.config.kinds import base_of, plain_of
    from sts_pipelines.config.pipeline import PipelineConfig
    from sts_pipelines.config.yaml_text import write_yaml
    from sts_pipelines.diagnostics import preflight

    pipeline = base_of(config)
    preflight.check_evaluations(pipeline)
    preflight.check_data(pipeline)
    preflight.check_images(pipeline, folder)
    preflight.check_images_shown(pipeline, folder)
    preflight.check_initial_weights(pipeline, folder)
    preflight.check_storage(pipeline, folder)
    if not isinstance(config, PipelineConfig):
        write_atomically(folder / "config.yaml", write_yaml(plain_of(config)))


def _summarize(jobs: "Sequence[Job]", folder: Path) -> None:
    """Print the table of finished jobs and write their report into `folder`, and into its storage."""
    from sts_pipelines.cli.verbs.report import report_folders
    from sts_pipelines.launch.storage import mirror_of
    from sts_pipelines.terminal import print_table

    if not jobs:
        return
    print_table({job.label: job.folder for job in jobs})
    report_folders([str(job.folder) for job in jobs], output=str(folder / "report"))
    mirror = mirror_of(jobs[0].pipeline.cluster.storage_path, folder)
    if mirror is not None:
        mirror.push()
