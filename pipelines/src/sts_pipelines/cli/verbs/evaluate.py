"""sts evaluate: measure the student and the teacher of finished runs.

Results are added to <run>/results.json; an evaluation that is there already under the same settings is not repeated.
"""

import argparse

EXAMPLES = """  sts evaluate runs/byol-imagenet-200ep-sts-1a2b3c4d --only linear,imagenet-c
  sts evaluate runs/byol-imagenet-200ep-sts-1a2b3c4d --only voc --evaluation.voc.data-root /data/VOCdevkit
  sts evaluate runs/byol-imagenet-200ep-tma-5e6f7a8b runs/byol-imagenet-200ep-sts-1a2b3c4d --only imagenet-c  # one pass
  sts evaluate runs/byol-digits-sts-1a2b3c4d --only linear --evaluation.linear.solver lbfgs
  sts evaluate runs/byol-cifar10-sts-1a2b3c4d --only imagenet-c --cluster.num-workers 2   # by Ray Train workers"""
TAKES_OVERRIDES = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run folder, or one that holds run folders")
    parser.add_argument("--only", help="comma-separated: linear, knn, few-labels, imagenet-c, voc (default: config's)")
    parser.add_argument("--networks", help="comma-separated: teacher, student (default: both)")


def run(arguments: argparse.Namespace, overrides: list[str]) -> int:
    from sts_pipelines.cli.running import evaluate_folders

    for option, flag in (("only", "--evaluation.after-training"), ("networks", "--evaluation.networks")):
        if getattr(arguments, option):
            overrides = [*overrides, flag, getattr(arguments, option)]
    evaluate_folders(arguments.runs, overrides)
    return 0
