"""sts export: write the backbone of a run for timm, torchvision or detectron2, or as a folder for the Hugging Face hub.

The folder holds the weights, the config from which timm builds the network, a model card with the results, and the
config of the training. It stays on this machine unless --push names a repository.
"""

import argparse
import tempfile
from pathlib import Path

EXAMPLES = """  sts export runs/byol-imagenet-200ep-sts-1a2b3c4d --to timm --output resnet50.safetensors
  sts export runs/moco-imagenet-200ep-tma-1a2b3c4d --to detectron2 --network student --output moco.pth
  sts export runs/byol-photos-1a2b3c4d --to hub-folder --output resnet50-photos --push somebody/resnet50-photos"""
TAKES_OVERRIDES = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument(
        "--to", required=True, choices=("timm", "torchvision", "detectron2", "hub-folder"), help="whose names to use"
    )
    parser.add_argument(
        "--network", default="teacher", choices=("teacher", "student"), help="the paper's is the teacher"
    )
    parser.add_argument("--output", required=True, help="the file, or the folder for the hub, to write")
    parser.add_argument(
        "--push", metavar="OWNER/NAME", help="upload the folder to this repository, private if it is new"
    )


def run(arguments: argparse.Namespace, overrides: list[str]) -> int:
    from sts_pipelines.errors import UsageError
    from sts_pipelines.launch.storage import brought_here

    if arguments.push is not None and arguments.to != "hub-folder":
        raise UsageError(f"--push needs --to hub-folder, got --to {arguments.to}: the hub takes folders")
    with brought_here([arguments.run]) as (arguments.run,):
        return _to_hub_folder(arguments) if arguments.to == "hub-folder" else _to_file(arguments)


def _to_file(arguments: argparse.Namespace) -> int:
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


def _to_hub_folder(arguments: argparse.Namespace) -> int:
    from sts_methods import export_to_hub_folder
    from sts_pipelines.config.run_folder import read_run
    from sts_pipelines.hub.card import TRAINING, model_card, training_yaml
    from sts_pipelines.hub.push import check_repository, push

    if arguments.push is not None:
        check_repository(arguments.push)
    source = _network_file(arguments.run, arguments.network)
    folder, output, pipeline = source.parent, Path(arguments.output), read_run(source.parent)
    place = f"hf-hub:{arguments.push}" if arguments.push else f"local-dir:{output.name}"
    card = model_card(folder, pipeline, arguments.network, name=(arguments.push or output.name), place=place)
    more = {TRAINING: training_yaml(pipeline)}
    mean, std = pipeline.training.data.statistics
    images = {"image_size": pipeline.training.data.image_size, "mean": mean, "std": std}
    count = export_to_hub_folder(source, output, card=card, more=more, images=images)
    print(f"{output}: {count} tensors; timm builds the network from it with equal features")
    if arguments.push is not None:
        print(f"pushed to {push(output, arguments.push)}")
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
