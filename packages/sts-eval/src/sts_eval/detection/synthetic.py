"""Detection transfer in minutes on a CPU: a drawn VOC tree, a narrow ResNet and settings to match.

Nothing that is measured here says anything about a method; it shows that the whole path works.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from sts_core.files import write_atomically
from sts_eval.detection.backends.resnet import ResNetShape
from sts_eval.detection.config import DetectionConfig
from sts_eval.detection.draws import draw_integers
from sts_eval.detection.voc import VOC_CLASSES

NARROW_SHAPE = ResNetShape(stem_channels=16, bottleneck_channels=8, out_channels=32)
"""ResNet-50 at an eighth of its width: .56 million parameters with the heads."""

_COLOURS = ("red", "green", "blue", "yellow", "magenta", "cyan")


def narrow_config(data_root: str | Path, *, iterations: int = 300) -> DetectionConfig:
    """Settings for `NARROW_SHAPE` and small images on one core; 300 iterations overfit four images."""
    return DetectionConfig(
        data_root=str(data_root),
        backend="torchvision",
        train_splits=("voc_2007_trainval",),
        train_sizes=(176, 192),
        test_size=192,
        max_size=320,
        batch_size=4,
        group_size=1,
        anchor_sizes=(32.0, 64.0, 128.0),
        rpn_train_pre_nms=400,
        rpn_train_post_nms=100,
        rpn_test_pre_nms=400,
        rpn_test_post_nms=100,
        rpn_samples=64,
        roi_samples=32,
        precise_bn_iterations=10,
        num_workers=0,
        checkpoint_every=100,
        log_every=10,
    ).scaled(iterations)


def write_synthetic_voc(
    root: str | Path, *, splits: Mapping[str, int], classes: tuple[str, ...] = VOC_CLASSES[:3], seed: int = 0
) -> Path:
    """Draw a tree VOC2007 below `root`: for each image set its number of images, such as {"trainval": 4}.

    An image holds one or two filled rectangles on noise; the class decides the colour. The second image of a set has
    a difficult object. Equal numbers of images in two sets are equal images.
    """
    folder = Path(root) / "VOC2007"
    for image_set, num_images in splits.items():
        ids = [f"{image_set}_{index:06d}" for index in range(num_images)]
        for index, image_id in enumerate(ids):
            _write_image(folder, image_id, classes, seed, index)
        write_atomically(folder / "ImageSets" / "Main" / f"{image_set}.txt", "\n".join(ids) + "\n")
    return Path(root)


def _write_image(folder: Path, image_id: str, classes: tuple[str, ...], seed: int, index: int) -> None:
    width, height = ((160, 128), (128, 160))[index % 2]
    noise = draw_integers("augmentation", seed, index, 0, count=height * width * 3).astype(np.uint8) // 4
    image = Image.fromarray(noise.reshape(height, width, 3) + 90)
    objects = []
    for number in range(1 + index % 2):
        box = _draw_box(width, height, seed, index, number)
        chosen = (index + number) % len(classes)
        ImageDraw.Draw(image).rectangle(box, fill=_COLOURS[chosen % len(_COLOURS)], outline="white", width=3)
        objects.append(_object_xml(classes[chosen], box, difficult=index == 1 and number == 1))
    (folder / "JPEGImages").mkdir(parents=True, exist_ok=True)
    image.save(folder / "JPEGImages" / f"{image_id}.jpg", quality=95)
    size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
    xml = f"<annotation><filename>{image_id}.jpg</filename>{size}{''.join(objects)}</annotation>\n"
    write_atomically(folder / "Annotations" / f"{image_id}.xml", xml)


def _draw_box(width: int, height: int, seed: int, index: int, number: int) -> tuple[int, int, int, int]:
    """A box in the left half of the image, or for the second object in the right; from 0, both ends included."""
    draws = draw_integers("augmentation", seed, index, 1 + number, count=4).tolist()
    box_width, box_height = 40 + draws[0] % 20, 45 + draws[1] % 40
    left = number * width // 2 + draws[2] % (width // 2 - box_width)
    top = draws[3] % (height - box_height)
    return left, top, left + box_width - 1, top + box_height - 1


def _object_xml(name: str, box: tuple[int, int, int, int], *, difficult: bool) -> str:
    edges = zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)
    corners = "".join(f"<{edge}>{value + 1}</{edge}>" for edge, value in edges)
    details = f"<pose>Unspecified</pose><truncated>0</truncated><difficult>{int(difficult)}</difficult>"
    return f"<object><name>{name}</name>{details}<bndbox>{corners}</bndbox></object>"
