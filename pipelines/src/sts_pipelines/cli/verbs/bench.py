"""sts bench: take 50 real steps of a pipeline in this process, and say how fast they are and how long a run would take.

Prints images per second, the time of each phase of a step, waiting for input, memory, and the hours of the whole run:
its steps, and evaluation as its forward passes (its solvers and test images are left out). Of several workers it
measures one, with its share of the batch. Nothing is left behind. Any flag of `sts run` applies.
"""

import argparse

EXAMPLES = """  sts bench byol-digits-sts
  sts bench byol-imagenet-200ep-sts --data.root /data/imagenet
  sts bench moco-imagenet-200ep-sts --synthetic --precision bfloat16
  sts bench fixmatch-cifar10-250-sts --synthetic --num-steps 10"""
TAKES_OVERRIDES = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pipeline", help="a name of `sts list` or a YAML file")
    parser.add_argument("--num-steps", type=int, default=50, help="steps that are measured, after 5 more (50)")
    parser.add_argument(
        "--synthetic",
        action="store_true",
        help="measure with images that are made up: files of noise, or the embedded digits in place of small images",
    )


def run(arguments: argparse.Namespace, overrides: list[str]) -> int:
    from sts_pipelines.cli.resolve import resolve
    from sts_pipelines.diagnostics.bench import bench
    from sts_pipelines.errors import UsageError

    if arguments.num_steps < 1:
        raise UsageError(f"--num-steps must be at least 1, got {arguments.num_steps}")
    config = resolve(arguments.pipeline, overrides)
    print(bench(config, num_steps=arguments.num_steps, synthetic=arguments.synthetic))
    return 0
