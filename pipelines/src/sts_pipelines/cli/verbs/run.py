"""sts run: train a pipeline or a comparison, evaluate student and teacher, and write a report.

Interrupted in any way, the same command goes on from the newest intact checkpoint. Any field of the config can be
overridden by a flag of its name; `sts show NAME --flags` lists them.
"""

import argparse

EXAMPLES = """  sts run quickstart
  sts run byol-imagenet-200ep-sts --data.root /data/imagenet --cluster.num-workers 8
  sts run byol-digits-sts --smoothing.momentum 0.9 --smoothing.preserve-probability 0.5 --seed 1
  sts run moco-digits-tma --cluster.num-workers 0
  sts run mine.yaml"""
TAKES_OVERRIDES = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pipeline", help="a name of `sts list` or a YAML file")


def run(arguments: argparse.Namespace, overrides: list[str]) -> int:
    from sts_pipelines.cli.resolve import resolve
    from sts_pipelines.cli.running import run_recipe
    from sts_pipelines.config.pipeline import SweepConfig
    from sts_pipelines.errors import UsageError

    recipe = resolve(arguments.pipeline, overrides)
    if isinstance(recipe, SweepConfig):
        raise UsageError(f"{arguments.pipeline} is a sweep: run it with sts sweep {arguments.pipeline}")
    run_recipe(recipe)
    return 0
