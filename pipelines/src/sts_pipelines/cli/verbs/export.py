"""sts export: write the backbone of a run as a checkpoint that timm, torchvision or detectron2 loads."""

import argparse

EXAMPLES = """  sts export runs/byol-imagenet-200ep-sts-1a2b3c4d --to timm --output resnet50.safetensors
  sts export runs/moco-imagenet-200ep-tma-1a2b3c4d --to detectron2 --network student --output moco.pth"""
TAKES_OVERRIDES = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument("--to", required=True, choices=("timm", "torchvision", "detectron2"), help="whose names to use")
    parser.add_argument(
        "--network", default="teacher", choices=("teacher", "student"), help="the paper's is the teacher"
    )
    parser.add_argument("--output", required=True, help="the file to write")


def run(arguments: argparse.Namespace, overrides: list[str]) -> int:
    from sts_pipelines.cli.running import export_folder

    print(export_folder(arguments.run, network=arguments.network, to=arguments.to, output=arguments.output))
    return 0
