"""A VOC tree is read with its conventions, and what is missing from it is said in one sentence."""

import shutil

import numpy as np
import pytest
from PIL import Image

from sts_eval.detection import VOC_CLASSES, read_voc_split
from sts_eval.detection.errors import VocError
from sts_eval.detection.synthetic import write_synthetic_voc
from sts_eval.detection.voc import load_image


@pytest.fixture
def tree(tmp_path):
    return write_synthetic_voc(tmp_path / "VOCdevkit", splits={"trainval": 4})


def annotation_of(tree, index=0):
    return tree / "VOC2007" / "Annotations" / f"trainval_{index:06d}.xml"


def test_boxes_are_lowered_by_one_at_the_top_left_and_kept_at_the_bottom_right(tree):
    path = annotation_of(tree)
    xml = path.read_text()
    start, end = xml.index("<bndbox>"), xml.index("</bndbox>")
    box = "<xmin>1</xmin><ymin>2</ymin><xmax>160</xmax><ymax>100.5</ymax>"
    path.write_text(xml[:start] + "<bndbox>" + box + xml[end:])
    image = read_voc_split(tree, "voc_2007_trainval").images[0]
    assert image.boxes.tolist() == [[0.0, 1.0, 160.0, 100.5]]
    assert (image.width, image.height) == (160, 128)


def test_classes_and_difficult_flags_come_from_the_annotation(tree):
    images = read_voc_split(tree, "voc_2007_trainval").images
    assert [image.classes.tolist() for image in images] == [[0], [1, 2], [2], [0, 1]]
    assert [image.difficult.tolist() for image in images] == [[False], [False, True], [False], [False, False]]


def test_the_root_may_be_the_devkit_or_its_parent(tree):
    ids = [
        [image.image_id for image in read_voc_split(root, "voc_2007_trainval").images] for root in (tree, tree.parent)
    ]
    assert ids[0] == ids[1] == [f"trainval_{index:06d}" for index in range(4)]


def test_a_subset_is_not_taken_for_the_published_split(tree):
    assert not read_voc_split(tree, "voc_2007_trainval").is_official


def test_there_are_twenty_classes_in_alphabetical_order():
    assert len(VOC_CLASSES) == 20
    assert list(VOC_CLASSES) == sorted(VOC_CLASSES)


def test_an_image_without_objects_has_empty_boxes(tree):
    path = annotation_of(tree)
    xml = path.read_text()
    path.write_text(xml[: xml.index("<object>")] + "</annotation>")
    assert read_voc_split(tree, "voc_2007_trainval").images[0].boxes.shape == (0, 4)


def remove_annotations(tree):
    shutil.rmtree(tree / "VOC2007" / "Annotations")


def remove_one_annotation(tree):
    annotation_of(tree, 2).unlink()


def remove_one_image(tree):
    (tree / "VOC2007" / "JPEGImages" / "trainval_000001.jpg").unlink()


def remove_image_set(tree):
    (tree / "VOC2007" / "ImageSets" / "Main" / "trainval.txt").unlink()


def empty_image_set(tree):
    (tree / "VOC2007" / "ImageSets" / "Main" / "trainval.txt").write_text("\n")


def repeat_an_image(tree):
    (tree / "VOC2007" / "ImageSets" / "Main" / "trainval.txt").write_text("trainval_000000\ntrainval_000000\n")


def tear_annotation(tree):
    path = annotation_of(tree)
    path.write_text(path.read_text()[:100])


def name_unknown_class(tree):
    path = annotation_of(tree)
    path.write_text(path.read_text().replace("aeroplane", "spaceship"))


def drop_a_corner(tree):
    path = annotation_of(tree)
    path.write_text(path.read_text().replace("xmin", "xmean"))


def move_box_outside(tree):
    path = annotation_of(tree)
    path.write_text(path.read_text().replace("<xmin>", "<xmin>9"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, "must hold VOC2007"),
        (remove_annotations, "must have a folder Annotations"),
        (remove_one_annotation, "got none for 1 of 4 (first trainval_000002.xml)"),
        (remove_one_image, "got none for 1 of 4 (first trainval_000001.jpg)"),
        (remove_image_set, "an image set must be listed in a file"),
        (empty_image_set, "got an empty one"),
        (repeat_an_image, "got repeated names"),
        (tear_annotation, "must be VOC's XML"),
        (name_unknown_class, "'spaceship' is not one of the twenty"),
        (drop_a_corner, "<bndbox/xmin> is missing in <object>"),
        (move_box_outside, "must cover a part of its 160x128 image"),
    ],
)
def test_a_damaged_tree_is_refused_in_one_sentence_that_names_the_damage(tree, damage, message):
    damage(tree)
    with pytest.raises(VocError) as error:
        read_voc_split(tree, "voc_2007_trainval")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_an_unreadable_image_is_named_when_it_is_loaded(tree):
    image = read_voc_split(tree, "voc_2007_trainval").images[0]
    image.path.write_bytes(image.path.read_bytes()[:300])
    with pytest.raises(VocError, match=r"must be readable, got .*trainval_000000\.jpg"):
        load_image(image)


def test_an_image_of_another_size_than_its_annotation_is_refused(tree):
    image = read_voc_split(tree, "voc_2007_trainval").images[0]
    Image.fromarray(np.zeros((10, 20, 3), dtype=np.uint8)).save(image.path)
    with pytest.raises(VocError, match="got 20x10 instead of 160x128"):
        load_image(image)
