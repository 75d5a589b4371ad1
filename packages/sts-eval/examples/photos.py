"""From a folder of photographs to a report: BYOL with STS and its control, measured on a few labelled images.

python packages/sts-eval/examples/photos.py PHOTOS LABELLED --output runs/photos

PHOTOS holds images at any depth; LABELLED has train/CLASS/ and val/CLASS/. Needs sts-core, sts-methods and sts-eval.
Stopped and run again, it continues. The progress line says how long it will take.
"""

import argparse
from pathlib import Path

from sts_core import spatial_temporal_smoothing
from sts_eval import (
    NeighboursConfig,
    add_entries,
    extract_features,
    fast_protocol,
    image_folder,
    linear_probe,
    load_source,
    nearest_neighbours,
    write_report,
)
from sts_methods import ByolConfig, DataConfig, LocalRuntime, TrainingConfig, default_device, fit

STS = spatial_temporal_smoothing(0.99, 0.7, buffers="keep")
TEACHERS = {"sts": STS, "tma": STS.matched_moving_average()}


def train(name: str, options: argparse.Namespace) -> Path:
    """The folder of a run with the teacher of that name."""
    config = TrainingConfig(
        method=ByolConfig(backbone=options.backbone),
        smoothing=TEACHERS[name],
        momentum_schedule="cosine",
        data=DataConfig(
            dataset="images", root=options.photos, image_size=options.image_size, num_workers=options.loaders
        ),
        global_batch_size=options.batch,
        epochs=options.epochs,
        seed=options.seed,
    )
    return fit(config, LocalRuntime(Path(options.output) / f"{name}-{options.seed}")).folder


def measure(run: Path, options: argparse.Namespace) -> None:
    """Adds neighbours and a linear probe of both networks to the run's results."""
    images = [image_folder(f"{options.labelled}/{split}", image_size=options.image_size) for split in ("train", "val")]
    for network in ("teacher", "student"):
        backbone = load_source(run, network=network).module
        train_features, test_features = (
            extract_features(backbone, one, cache=run / "features", device=default_device()) for one in images
        )
        neighbours = nearest_neighbours(train_features, test_features, NeighboursConfig(ks=(5,)))
        linear = linear_probe(train_features, test_features, fast_protocol())
        add_entries(run, [*neighbours.entries(network), *linear.entries(network)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos")
    parser.add_argument("labelled")
    parser.add_argument("--output", default="runs/photos")
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--loaders", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for name in TEACHERS:
        measure(train(name, options), options)
    _, page = write_report([options.output], Path(options.output) / "report", against_paper=False)
    print(f"report: {page.resolve().as_uri()}")


if __name__ == "__main__":  # loader processes import this file again
    main()
