"""Average precision equals a slow, obvious implementation, and obeys what must hold for any detector."""

from dataclasses import replace

import numpy as np
import pytest

from sts_eval.detection import VOC_CLASSES, Detections, VocSplit, evaluate_voc
from sts_eval.detection.average_precision import THRESHOLDS, average_precision
from sts_eval.detection.errors import DetectionsError
from sts_eval.detection.voc import VocImage


def make_split(rng, *, num_images=30, year=2007, num_classes=20):
    images = []
    for index in range(num_images):
        count = rng.integers(1, 6)
        corner = rng.integers(0, 200, size=(count, 2))
        boxes = np.concatenate([corner, corner + rng.integers(20, 150, size=(count, 2))], axis=1).astype(np.float64)
        images.append(
            VocImage(
                image_id=f"{index:06d}",
                path=None,
                height=400,
                width=400,
                boxes=boxes,
                classes=rng.integers(0, num_classes, size=count),
                difficult=rng.random(count) < 0.2,
            )
        )
    return VocSplit(name=f"voc_{year}_test", year=year, images=tuple(images))


def oracle(split):
    return [
        Detections(
            image_id=image.image_id,
            boxes=image.boxes.astype(np.float32),
            scores=np.ones(len(image.boxes), dtype=np.float32),
            classes=image.classes,
        )
        for image in split.images
    ]


def noisy(split, rng):
    """Every object twice with jitter, and as many boxes at random; all scores differ by .001 or more."""
    entries = []
    total = 3 * sum(len(image.boxes) for image in split.images)
    scores = iter((rng.permutation(total) + 1) / (total + 1))
    for image in split.images:
        jitter = [image.boxes + rng.normal(0, 8, image.boxes.shape) for _ in range(2)]
        corner = rng.uniform(0, 200, (len(image.boxes), 2))
        other = np.concatenate([corner, corner + rng.uniform(20, 150, corner.shape)], axis=1)
        boxes = np.concatenate([*jitter, other]).astype(np.float32)
        entries.append(
            Detections(
                image_id=image.image_id,
                boxes=boxes,
                scores=np.array([next(scores) for _ in boxes], dtype=np.float32),
                classes=np.concatenate([image.classes] * 3),
            )
        )
    return entries


def overlap(a, b):
    width = min(a[2], b[2]) - max(a[0], b[0]) + 1
    height = min(a[3], b[3]) - max(a[1], b[1]) + 1
    common = max(width, 0) * max(height, 0)
    areas = sum((box[2] - box[0] + 1) * (box[3] - box[1] + 1) for box in (a, b))
    return common / (areas - common)


def slow_precision(split, detections, class_index, threshold):
    """Average precision by the definition, one detection at a time."""
    objects = {
        image.image_id: [
            ([box[0] + 1, box[1] + 1, box[2], box[3]], hard)
            for box, label, hard in zip(image.boxes.tolist(), image.classes, image.difficult, strict=True)
            if label == class_index
        ]
        for image in split.images
    }
    num_objects = sum(not hard for entries in objects.values() for _, hard in entries)
    found = [
        (round(float(score), 3), entry.image_id, [round(v, 1) for v in (box[0] + 1, box[1] + 1, box[2], box[3])])
        for entry in detections
        for box, score, label in zip(entry.boxes.tolist(), entry.scores, entry.classes, strict=True)
        if label == class_index
    ]
    used, right, wrong, curve = set(), 0, 0, []
    for _, image_id, box in sorted(found, key=lambda entry: -entry[0]):
        overlaps = [overlap(box, other) for other, _ in objects[image_id]]
        best = int(np.argmax(overlaps)) if overlaps else -1
        if overlaps and overlaps[best] > threshold:
            if not objects[image_id][best][1]:
                right, wrong = (right + 1, wrong) if (image_id, best) not in used else (right, wrong + 1)
                used.add((image_id, best))
        else:
            wrong += 1
        curve.append((right / num_objects, right / max(right + wrong, 1e-12)))
    return slow_summary(curve, eleven_point=split.year == 2007)


def slow_summary(curve, *, eleven_point):
    if eleven_point:
        levels = np.arange(0.0, 1.1, 0.1)
        return sum(max((p for r, p in curve if r >= level), default=0.0) for level in levels) / 11
    area, last = 0.0, 0.0
    for recall, _ in curve:
        area += (recall - last) * max(p for r, p in curve if r >= recall)
        last = recall
    return area


@pytest.mark.parametrize("year", [2007, 2012])
def test_ground_truth_as_detections_scores_one_hundred(year):
    split = make_split(np.random.default_rng(0), num_images=60, year=year)
    scores = evaluate_voc(split, oracle(split))
    assert scores.absent_classes == ()
    assert (scores.ap, scores.ap50, scores.ap75) == (100.0, 100.0, 100.0)
    assert scores.metric == ("11-point" if year == 2007 else "area")


@pytest.mark.parametrize("year", [2007, 2012])
def test_average_precision_equals_a_slow_implementation_of_the_definition(year):
    rng = np.random.default_rng(1)
    split = make_split(rng, year=year, num_classes=3)
    detections = noisy(split, rng)
    scores = evaluate_voc(split, detections)
    table = np.array([[slow_precision(split, detections, index, t) for t in THRESHOLDS] for index in range(3)]) * 100
    for index in range(3):
        expected = (table[index].mean(), table[index, 0], table[index, 5])
        assert scores.per_class[VOC_CLASSES[index]] == pytest.approx(expected)
    assert scores.ap == pytest.approx(table.sum() / 200)
    assert 0 < scores.ap75 < scores.ap50


def test_a_class_without_objects_counts_as_zero_and_is_named():
    split = make_split(np.random.default_rng(2), num_classes=2)
    scores = evaluate_voc(split, oracle(split))
    assert scores.absent_classes == VOC_CLASSES[2:]
    assert scores.ap50 == pytest.approx(10.0)


def test_a_difficult_object_is_neither_rewarded_nor_punished():
    split = make_split(np.random.default_rng(3), num_classes=1)
    detections = oracle(split)
    without = [
        replace(entry, **{name: getattr(entry, name)[~image.difficult] for name in ("boxes", "scores", "classes")})
        for entry, image in zip(detections, split.images, strict=True)
    ]
    assert sum(len(entry.scores) for entry in without) < sum(len(entry.scores) for entry in detections)
    assert evaluate_voc(split, without) == evaluate_voc(split, detections)


def test_a_second_detection_of_an_object_costs_precision():
    split = make_split(np.random.default_rng(4), num_classes=1)
    twice = [
        replace(entry, **{name: np.concatenate([getattr(entry, name)] * 2) for name in ("boxes", "scores", "classes")})
        for entry in oracle(split)
    ]
    assert evaluate_voc(split, twice).ap50 < evaluate_voc(split, oracle(split)).ap50


def test_no_detections_score_zero():
    split = make_split(np.random.default_rng(5))
    empty = [
        Detections(
            image_id=image.image_id,
            boxes=np.zeros((0, 4), dtype=np.float32),
            scores=np.zeros(0, dtype=np.float32),
            classes=np.zeros(0, dtype=np.int64),
        )
        for image in split.images
    ]
    assert evaluate_voc(split, empty).ap == 0.0


def test_the_eleven_point_metric_and_the_area_differ_as_defined():
    recall, precision = np.array([0.5, 0.5, 1.0]), np.array([1.0, 0.5, 2 / 3])
    assert average_precision(recall, precision, eleven_point=True) == pytest.approx((6 * 1.0 + 5 * 2 / 3) / 11)
    assert average_precision(recall, precision, eleven_point=False) == pytest.approx(0.5 * 1.0 + 0.5 * 2 / 3)


def test_a_missing_or_repeated_or_foreign_image_is_refused():
    split = make_split(np.random.default_rng(6))
    detections = oracle(split)
    with pytest.raises(DetectionsError, match="must cover exactly the 30 images of voc_2007_test, got 29"):
        evaluate_voc(split, detections[1:])
    with pytest.raises(DetectionsError, match="one entry, got two for 000000"):
        evaluate_voc(split, [*detections, detections[0]])
    with pytest.raises(DetectionsError, match="first difference 000000"):
        evaluate_voc(split, [replace(detections[0], image_id="999999"), *detections[1:]])
