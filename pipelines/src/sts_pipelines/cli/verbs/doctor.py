"""sts doctor: what a run folder or a checkpoint is, and whether all that is needed to resume it is there and intact.

Prints method, step, the p and m that were applied, networks and buffers, the label split, and every checkpoint with the
state of its checksums; of a comparison or a sweep all this for every run in it. Exit code 0: resumable; 1: it is not.

Of a checkpoint of Lightning, transformers, diffusers, timm or a plain loop it finds student and average, without
running code from it, and says what is wrong with the average (exit code 1): equal to the raw weights, statistics of a
new network, 16 bits; with a later one of the same run (ours, too) also whether it moves, and which decay fits.
"""

import argparse

EXAMPLES = """  sts doctor runs/byol-digits-sts-1a2b3c4d
  sts doctor runs/byol-digits-sts-1a2b3c4d/checkpoints/step-00000120
  sts doctor runs/byol-digits-sts-1a2b3c4d/teacher.safetensors
  sts doctor lightning_logs/version_0/checkpoints/epoch=1.ckpt
  sts doctor output/checkpoint-500 output/checkpoint-1000"""
TAKES_OVERRIDES = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path",
        metavar="RUN_OR_CHECKPOINT",
        help="a run folder, one that holds run folders, a URI, a backbone file, or anybody's checkpoint",
    )
    parser.add_argument("later", nargs="?", metavar="LATER", help="a later checkpoint: how does the average move?")
    parser.add_argument("--steps", type=int, help="optimizer steps between the two, where they do not say it")


def run(arguments: argparse.Namespace, overrides: list[str]) -> int:
    from sts_pipelines.diagnostics.doctor import examine
    from sts_pipelines.launch.storage import brought_here
    from sts_pipelines.plugins import load_records

    load_records()
    with brought_here([path for path in (arguments.path, arguments.later) if path is not None]) as places:
        text, healthy = examine(*places, steps=arguments.steps)
    print(text)
    return 0 if healthy else 1
