"""Pascal VOC detection splits from a VOCdevkit tree, read once, checked fully and shared by both backends.

<root>[/VOCdevkit]/VOC2007/{Annotations/*.xml, ImageSets/Main/trainval.txt, JPEGImages/*.jpg}
"""

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from sts_core import ConfigError
from sts_eval.detection.config import SPLIT_NAME
from sts_eval.detection.errors import VocError

VOC_CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
"""The twenty classes; a class's index is its position here."""

_CLASS_INDEX = {name: index for index, name in enumerate(VOC_CLASSES)}
# Images in the splits as published (VOC development kits 2007 and 2012): tells a subset from the whole.
OFFICIAL_SIZES = {"voc_2007_trainval": 5011, "voc_2012_trainval": 11540, "voc_2007_test": 4952}


@dataclass(frozen=True, kw_only=True)
class VocImage:
    """One image and its objects.

    Annotations count pixels from 1 and include both ends, so the box of a whole image of width W reads 1 ... W. In
    coordinates that is 0 ... W: xmin and ymin are lowered by one on reading, and raised again on scoring.
    """

    image_id: str
    path: Path
    height: int
    width: int
    boxes: np.ndarray
    """float64 [N, 4] as xmin, ymin, xmax, ymax in coordinates."""
    classes: np.ndarray
    """int64 [N], indices into VOC_CLASSES."""
    difficult: np.ndarray
    """bool [N]: trained on, neither rewarded nor punished in tests."""


@dataclass(frozen=True, kw_only=True)
class VocSplit:
    """All images of one image set."""

    name: str
    year: int
    images: tuple[VocImage, ...]

    @property
    def is_official(self) -> bool:
        """Whether the split has as many images as the published one of this name."""
        return OFFICIAL_SIZES.get(self.name) == len(self.images)


def read_voc_split(root: str | Path, name: str) -> VocSplit:
    """Read the split `name`, such as voc_2007_trainval, below `root`; raise VocError for whatever is missing."""
    match = SPLIT_NAME.fullmatch(name)
    if match is None:
        raise ConfigError(f"a split must be called voc_<year>_<image set>, got {name!r}: for instance voc_2007_test")
    year, image_set = int(match[1]), match[2]
    folder = _year_folder(Path(root), year)
    ids = _read_image_set(folder, image_set)
    _check_present(folder, "Annotations", ids, ".xml")
    _check_present(folder, "JPEGImages", ids, ".jpg")
    images = tuple(_read_annotation(folder, image_id) for image_id in ids)
    return VocSplit(name=name, year=year, images=images)


def load_image(image: VocImage) -> Image.Image:
    """Decode an image to RGB and check that it has the size that its annotation says."""
    try:
        with Image.open(image.path) as file:
            decoded = file.convert("RGB")
    except (OSError, UnidentifiedImageError) as error:
        raise VocError(f"an image must be readable, got {image.path} ({error}): restore the file") from error
    if decoded.size != (image.width, image.height):
        raise VocError(
            f"an image must have the size in its annotation, got {decoded.size[0]}x{decoded.size[1]} instead of "
            f"{image.width}x{image.height} for {image.path}: restore the file"
        )
    return decoded


def _year_folder(root: Path, year: int) -> Path:
    for folder in (root / f"VOC{year}", root / "VOCdevkit" / f"VOC{year}"):
        if folder.is_dir():
            return folder
    raise VocError(f"a VOC tree must hold VOC{year}, got {root}: unpack the {year} archives there")


def _read_image_set(folder: Path, image_set: str) -> list[str]:
    path = folder / "ImageSets" / "Main" / f"{image_set}.txt"
    if not path.is_file():
        raise VocError(f"an image set must be listed in a file, got none at {path}: restore it or use another split")
    ids = [line.split()[0] for line in path.read_text().splitlines() if line.strip()]
    if not ids or len(set(ids)) != len(ids):
        problem = "an empty one" if not ids else "repeated names"
        raise VocError(f"an image set must name each image once, got {problem} in {path}: restore the file")
    return ids


def _check_present(folder: Path, kind: str, ids: Sequence[str], suffix: str) -> None:
    directory = folder / kind
    if not directory.is_dir():
        raise VocError(
            f"a VOC tree must have a folder {kind}, got none in {folder}: unpack the archive that holds it "
            "(the test annotations of VOC2007 come in one of their own)"
        )
    present = {path.name for path in directory.iterdir()}
    missing = [image_id for image_id in ids if image_id + suffix not in present]
    if missing:
        raise VocError(
            f"every image of a split must have a file in {directory}, got none for {len(missing)} of {len(ids)} "
            f"(first {missing[0]}{suffix}): unpack the archive again"
        )


def _read_annotation(folder: Path, image_id: str) -> VocImage:
    path = folder / "Annotations" / f"{image_id}.xml"
    try:
        root = ElementTree.parse(path).getroot()
        height, width = (int(_text(root, f"size/{side}")) for side in ("height", "width"))
        objects = [_read_object(element) for element in root.findall("object")]
    except (ElementTree.ParseError, ValueError) as error:
        raise VocError(f"an annotation must be VOC's XML, got {path} ({error}): restore the file") from error
    boxes = np.array([box for box, _, _ in objects], dtype=np.float64).reshape(-1, 4)
    _check_boxes(path, boxes, height, width)
    return VocImage(
        image_id=image_id,
        path=folder / "JPEGImages" / f"{image_id}.jpg",
        height=height,
        width=width,
        boxes=boxes,
        classes=np.array([index for _, index, _ in objects], dtype=np.int64),
        difficult=np.array([difficult for _, _, difficult in objects], dtype=bool),
    )


def _read_object(element: ElementTree.Element) -> tuple[list[float], int, bool]:
    name = _text(element, "name")
    if name not in _CLASS_INDEX:
        raise ValueError(f"class {name!r} is not one of the twenty")
    box = [float(_text(element, f"bndbox/{edge}")) for edge in ("xmin", "ymin", "xmax", "ymax")]
    difficult = int(element.findtext("difficult", "0"))
    return [box[0] - 1.0, box[1] - 1.0, box[2], box[3]], _CLASS_INDEX[name], bool(difficult)


def _text(element: ElementTree.Element, path: str) -> str:
    text = element.findtext(path)
    if text is None:
        raise ValueError(f"<{path}> is missing in <{element.tag}>")
    return text.strip()


def _check_boxes(path: Path, boxes: np.ndarray, height: int, width: int) -> None:
    clipped = np.clip(boxes, 0, [width, height, width, height])
    valid = (clipped[:, 2:] > clipped[:, :2]).all(axis=1)
    if not valid.all():
        worst = boxes[~valid][0].tolist()
        raise VocError(
            f"a box must cover a part of its {width}x{height} image, got {worst} in {path}: restore the file"
        )
