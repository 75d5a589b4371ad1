"""sts doctor: what a run folder or a checkpoint is, and whether all that is needed to resume it is there and intact.

Prints method, step, the p and m that were applied, networks and buffers, the label split, and every checkpoint with the
state of its checksums; of a comparison or a sweep all this for every run in it. Exit code 0: resumable; 1: it is not.
"""

import argparse

EXAMPLES = """  sts doctor runs/byol-digits-sts-1a2b3c4d
  sts doctor runs/byol-digits-sts-1a2b3c4d/checkpoints/step-00000120
  sts doctor runs/byol-digits-sts-1a2b3c4d/teacher.safetensors"""
TAKES_OVERRIDES = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path",
        metavar="RUN_OR_CHECKPOINT",
        help="a run folder, one that holds run folders, a checkpoint folder or a backbone file",
    )


def run(arguments: argparse.Namespace, overrides: list[str]) -> int:
    from sts_pipelines.diagnostics.doctor import examine
    from sts_pipelines.plugins import load_records

    load_records()
    text, healthy = examine(arguments.path)
    print(text)
    return 0 if healthy else 1
