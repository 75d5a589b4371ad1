"""sts prepare: sort ImageNet's archives into folders of classes, smaller if you like, and count them.

ARCHIVES holds ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar and ILSVRC2012_devkit_t12.tar.gz as they were
downloaded, or Kaggle's folder; instead of an archive its images in train/CLASS/ and val/, instead of the kit a file
with classes. Rerun the same command to resume a preparation that was interrupted.
"""

import argparse

EXAMPLES = """  sts prepare imagenet downloads /data/imagenet
  sts prepare imagenet downloads /data/imagenet-256 --shorter-side 256 --threads 16
  sts check byol-imagenet-200ep-sts --data.root /data/imagenet"""
TAKES_OVERRIDES = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dataset", choices=("imagenet",), help="what to prepare")
    parser.add_argument("archives", metavar="ARCHIVES", help="the folder with what was downloaded")
    parser.add_argument("folder", metavar="FOLDER", help="the folder to make, for --data.root")
    parser.add_argument("--labels", metavar="FILE", help="classes of the validation images, one in each line")
    parser.add_argument("--shorter-side", type=int, metavar="PIXELS", help="make larger images smaller")
    parser.add_argument("--quality", type=int, default=95, help="of the JPEGs that are made smaller")
    parser.add_argument("--threads", type=int, default=8, help="folders that are made at once")


def run(arguments: argparse.Namespace, overrides: list[str]) -> int:
    from sts_methods import prepare_imagenet

    prepare_imagenet(
        arguments.archives,
        arguments.folder,
        labels=arguments.labels,
        shorter_side=arguments.shorter_side,
        quality=arguments.quality,
        num_threads=arguments.threads,
    )
    return 0
