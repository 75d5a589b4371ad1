"""VOC average precision, as detectron2 and the published rows compute it.

AP is the mean over the IoU thresholds .50, .55 ... .95 of the mean over the twenty classes. At one threshold,
detections are taken by falling score; each is compared with the object of its class and image that it overlaps most.
If the overlap exceeds the threshold, the first such detection of an object is right, a later one is wrong, and one of
a difficult object counts as neither. All others are wrong.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from sts_eval.detection.errors import DetectionsError
from sts_eval.detection.voc import VOC_CLASSES, VocImage, VocSplit

THRESHOLDS = tuple(percent / 100 for percent in range(50, 100, 5))


@dataclass(frozen=True, kw_only=True)
class Detections:
    """What a detector found in one image, in coordinates of the file."""

    image_id: str
    boxes: np.ndarray
    """float32 [N, 4]."""
    scores: np.ndarray
    """float32 [N]."""
    classes: np.ndarray
    """int64 [N]."""


@dataclass(frozen=True, kw_only=True)
class VocScores:
    """Average precision in percent."""

    ap: float
    ap50: float
    ap75: float
    metric: str
    """"11-point" for 2007, "area" for later years."""
    per_class: Mapping[str, tuple[float, ...]]
    """AP, AP50 and AP75 of each class."""
    absent_classes: tuple[str, ...]
    """Classes without an object that counts: they enter the mean as 0, as in detectron2."""
    num_images: int


@dataclass(frozen=True)
class _Matches:
    """The detections of one class by falling score, each with its best object."""

    overlap: np.ndarray
    """IoU with the best object, minus infinity where the image has none."""
    object_index: np.ndarray
    """Index of the best object over the split."""
    difficult: np.ndarray
    """Whether the best object is difficult."""
    num_objects: int
    """Objects that count."""


def evaluate_voc(split: VocSplit, detections: Iterable[Detections]) -> VocScores:
    """Score one entry of `detections` per image of `split`."""
    found = _by_image(split, detections)
    eleven_point = split.year == 2007
    table = np.zeros((len(VOC_CLASSES), len(THRESHOLDS)))
    absent = []
    for index, name in enumerate(VOC_CLASSES):
        matches = _match_class(split, found, index)
        if matches.num_objects == 0:
            absent.append(name)
            continue
        for column, threshold in enumerate(THRESHOLDS):
            table[index, column] = 100 * _class_precision(matches, threshold, eleven_point=eleven_point)
    at50, at75 = THRESHOLDS.index(0.5), THRESHOLDS.index(0.75)
    summary = np.stack([table.mean(axis=1), table[:, at50], table[:, at75]], axis=1)  # [classes, 3]
    ap, ap50, ap75 = summary.mean(axis=0).tolist()
    per_class = {name: tuple(row) for name, row in zip(VOC_CLASSES, summary.tolist(), strict=True)}
    return VocScores(
        ap=ap,
        ap50=ap50,
        ap75=ap75,
        metric="11-point" if eleven_point else "area",
        per_class=per_class,
        absent_classes=tuple(absent),
        num_images=len(split.images),
    )


def average_precision(recall: np.ndarray, precision: np.ndarray, *, eleven_point: bool) -> float:
    """Summarise a precision-recall curve given by rising recall.

    11-point: the mean over r = 0, .1 ... 1 of the best precision at a recall of r or more.
    Area:     ∫ p(r) dr with p(r) the best precision at a recall of r or more.
    """
    best = np.maximum.accumulate(precision[::-1])[::-1]  # [N], best precision from here on
    best = np.append(best, 0.0)
    if eleven_point:
        # np.arange(0, 1.1, .1), as in the devkit's port, holds .30000000000000004, which decides at a recall of .3.
        return float(best[np.searchsorted(recall, np.arange(0.0, 1.1, 0.1))].mean())
    return float((np.diff(recall, prepend=0.0) * best[:-1]).sum())


def _by_image(split: VocSplit, detections: Iterable[Detections]) -> dict[str, Detections]:
    found: dict[str, Detections] = {}
    for entry in detections:
        if entry.image_id in found:
            raise DetectionsError(f"an image must have one entry, got two for {entry.image_id}: merge them")
        found[entry.image_id] = entry
    expected = {image.image_id for image in split.images}
    if expected != set(found):
        example = sorted(expected ^ set(found))[0]
        raise DetectionsError(
            f"detections must cover exactly the {len(expected)} images of {split.name}, got {len(found)} entries "
            f"(first difference {example}): pass an empty entry for an image without detections"
        )
    return found


def _match_class(split: VocSplit, found: Mapping[str, Detections], class_index: int) -> _Matches:
    scores, overlaps, indices, difficult = [], [], [], []
    num_before, num_counting = 0, 0
    for image in split.images:
        chosen = image.classes == class_index
        entry = found[image.image_id]
        mine = entry.classes == class_index
        overlap, best = _best_overlap(entry.boxes[mine], image, chosen)
        scores.append(entry.scores[mine].astype(np.float64).round(3))
        overlaps.append(overlap)
        indices.append(best + num_before)
        flags = image.difficult[chosen]
        difficult.append(flags[best] if flags.size else np.zeros(len(best), dtype=bool))
        num_before += int(chosen.sum())
        num_counting += int((~flags).sum())
    # Scores are rounded, so there are ties: a stable sort keeps the order of images and thus one result everywhere.
    order = np.argsort(-np.concatenate(scores), kind="stable")
    joined = [np.concatenate(parts)[order] for parts in (overlaps, indices, difficult)]
    return _Matches(joined[0], joined[1], joined[2], num_counting)


def _best_overlap(boxes: np.ndarray, image: VocImage, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each box the largest IoU with the chosen objects of `image`, and the index among these.

    In pixels counted from 1 with both ends included, sides are xmax − xmin + 1; boxes are rounded to a tenth of a
    pixel. Both are conventions of the devkit's result files, which the published numbers follow.
    """
    # The shift is made in the detector's float32, before rounding, as detectron2 does.
    shift = np.array([1, 1, 0, 0])
    first = (boxes + shift.astype(boxes.dtype)).astype(np.float64).round(1)[:, None]  # [N, 1, 4]
    second = (image.boxes[chosen] + shift)[None]  # [1, M, 4]
    if not first.size or not second.size:
        return np.full(len(boxes), -np.inf), np.zeros(len(boxes), dtype=np.int64)
    low = np.maximum(first[..., :2], second[..., :2])
    high = np.minimum(first[..., 2:], second[..., 2:])
    intersection = np.maximum(high - low + 1, 0).prod(axis=-1)
    areas = [(box[..., 2:] - box[..., :2] + 1).prod(axis=-1) for box in (first, second)]
    overlap = intersection / (areas[0] + areas[1] - intersection)  # [N, M]
    return overlap.max(axis=1), overlap.argmax(axis=1)


def _class_precision(matches: _Matches, threshold: float, *, eleven_point: bool) -> float:
    hit = matches.overlap > threshold
    counting = np.flatnonzero(hit & ~matches.difficult)
    first_hits = counting[np.unique(matches.object_index[counting], return_index=True)[1]]
    right = np.zeros(len(hit), dtype=bool)
    right[first_hits] = True
    ignored = hit & matches.difficult
    num_right = np.cumsum(right)
    num_wrong = np.cumsum(~right & ~ignored)
    recall = num_right / matches.num_objects
    precision = num_right / np.maximum(num_right + num_wrong, np.finfo(np.float64).eps)
    return average_precision(recall, precision, eleven_point=eleven_point)
