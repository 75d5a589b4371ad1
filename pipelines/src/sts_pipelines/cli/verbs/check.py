"""sts check: build a pipeline, take one step on fake data of the right shape on the CPU, and say what it will need.

Prints parameters, units per granularity, steps, batch per worker and a memory estimate, and lets Ray place the workers
on a simulated machine with 8 GPUs: a mistake costs seconds and not a night. Where --data.root is given, it also looks
whether what training and evaluation read is there. Nothing is written.
"""

import argparse

EXAMPLES = """  sts check byol-imagenet-200ep-sts
  sts check moco-imagenet-200ep-sts --global-batch-size 512 --cluster.num-workers 4
  sts check mine.yaml --no-placement"""
TAKES_OVERRIDES = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pipeline", help="a name of `sts list` or a YAML file")
    parser.add_argument("--no-placement", action="store_true", help="leave out the simulated placement (no Ray)")


def run(arguments: argparse.Namespace, overrides: list[str]) -> int:
    from sts_pipelines.cli.resolve import resolve
    from sts_pipelines.diagnostics.dry_run import check_pipeline

    print(check_pipeline(resolve(arguments.pipeline, overrides), placement=not arguments.no_placement))
    return 0
