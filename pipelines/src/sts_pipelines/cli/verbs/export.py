"""sts export: write the backbone of a run as a checkpoint that timm, torchvision or detectron2 loads."""

import argparse
import tempfile
from pathlib import Path

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
    from sts_methods import export

    source = _network_file(arguments.run, arguments.network)
    output = Path(arguments.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=output.parent).close()  # an OSError now, and not one of the library's own later
    report = export(source, output, to=arguments.to)
    print(
        f"{report.path}: {report.num_tensors} tensors for {report.to}; features differ from ours by at most "
        f"{report.max_difference:.1g}"
    )
    return 0


def _network_file(folder: str, network: str) -> Path:
    """The backbone that the only run in `folder` has saved."""
    from sts_pipelines.config.run_folder import run_folders
    from sts_pipelines.errors import UsageError

    (run, *others) = run_folders(folder)
    if others:
        names = ", ".join(one.name for one in (run, *others))
        raise UsageError(f"export writes one network, {folder} holds several runs: pass one of its folders {names}")
    file = run / f"{network}.safetensors"
    if not file.is_file():
        raise UsageError(f"{folder} has no {network}.safetensors: let sts run finish the training first")
    return file
