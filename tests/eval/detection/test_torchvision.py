"""The parts of the torchvision backend, each against its definition; test_detection_detectron2 compares the whole."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torchvision.models.detection.image_list import ImageList
from torchvision.ops import box_iou

from sts_eval.detection import read_voc_split
from sts_eval.detection.backends.anchors import GridAnchors
from sts_eval.detection.backends.choice import build_detector
from sts_eval.detection.backends.proposals import sample_labels
from sts_eval.detection.errors import DivergenceError
from sts_eval.detection.samples import make_sample
from sts_eval.detection.synthetic import NARROW_SHAPE, narrow_config, write_synthetic_voc


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    root = write_synthetic_voc(tmp_path_factory.mktemp("voc"), splits={"trainval": 3})
    images = read_voc_split(root, "voc_2007_trainval").images
    return [make_sample(image, short_side=96, max_size=300, flip=False, key=key) for key, image in enumerate(images)]


def build(**settings):
    config = replace(narrow_config("unused"), anchor_sizes=(16.0, 32.0, 64.0), **settings)
    return build_detector(config, NARROW_SHAPE)


def test_anchors_are_centred_on_multiples_of_sixteen_and_have_the_area_and_ratio_asked_for():
    images = ImageList(torch.zeros(2, 3, 40, 50), [(40, 50), (30, 50)])
    first, second = GridAnchors((32.0, 64.0), (0.5, 2.0))(images, [torch.zeros(2, 8, 3, 4)])
    assert torch.equal(first, second)
    boxes = first.view(3, 4, 4, 4)  # row, column, anchor, edge
    centre = (boxes[..., :2] + boxes[..., 2:]) / 2
    assert torch.allclose(centre[2, 3], torch.tensor([48.0, 32.0]).expand(4, 2))
    width, height = (boxes[..., 2:] - boxes[..., :2])[0, 0].T
    assert torch.allclose(width * height, torch.tensor([32.0, 32.0, 64.0, 64.0]) ** 2)
    assert torch.allclose(height / width, torch.tensor([0.5, 2.0, 0.5, 2.0]))


def test_a_sample_of_labels_holds_at_most_the_positive_share_and_no_ignored_ones():
    labels = torch.cat([torch.ones(30), torch.zeros(500), torch.full((70,), -1.0)])
    chosen = sample_labels(labels, count=40, positive_fraction=0.25, purpose="anchors", key=1)
    assert len(chosen) == len(set(chosen.tolist())) == 40
    assert (labels[chosen] == 1).sum() == 10
    assert (labels[chosen] == -1).sum() == 0


def test_missing_positives_are_replaced_by_negatives_and_missing_negatives_by_nothing():
    few = torch.cat([torch.ones(2), torch.zeros(500)])
    assert len(sample_labels(few, count=40, positive_fraction=0.25, purpose="anchors", key=1)) == 40
    scarce = torch.cat([torch.ones(100), torch.zeros(5)])
    assert len(sample_labels(scarce, count=40, positive_fraction=0.25, purpose="anchors", key=1)) == 15


def test_a_sample_depends_on_its_key_alone():
    labels = torch.cat([torch.ones(100), torch.zeros(500)])
    draws = [sample_labels(labels, count=40, positive_fraction=0.5, purpose="anchors", key=key) for key in (1, 1, 2)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_pooling_reads_features_where_the_box_is_and_not_half_a_pixel_beside_it():
    # A feature that grows by one per column: at coordinate x of the image it is x / 16 − 1/2, linear in between.
    ramp = torch.arange(20.0).expand(1, 1, 20, 20)
    box = torch.tensor([[40.0, 60.0, 200.0, 180.0]])
    pooled = build().roi_heads.box_roi_pool({"c4": ramp}, [box], None)
    assert pooled.shape == (1, 1, 14, 14)
    columns = (40 + (torch.arange(14) + 0.5) * 160 / 14) / 16 - 0.5
    assert torch.allclose(pooled[0, 0, 0], columns, atol=1e-4)


def test_losses_are_a_function_of_samples_and_weights(samples):
    detector = build().train()
    torch.manual_seed(1)
    first = detector(samples)
    torch.manual_seed(2)
    second = detector(samples)
    assert all(torch.equal(first[name], second[name]) for name in first)
    other = detector([replace(sample, key=sample.key + 10) for sample in samples])
    assert other["loss_objectness"] != first["loss_objectness"]


def test_the_box_losses_are_l1_over_the_number_of_proposals():
    heads = build().roi_heads
    generator = torch.Generator().manual_seed(0)
    logits, deltas = torch.randn(6, 21, generator=generator), torch.randn(6, 80, generator=generator)
    labels, targets = torch.tensor([0, 3, 0, 20, 1, 0]), torch.randn(6, 4, generator=generator)
    losses = heads.losses(logits, deltas, labels, targets)
    background_last = torch.tensor([20, 2, 20, 19, 0, 20])
    assert torch.allclose(losses["loss_classifier"], F.cross_entropy(logits, background_last))
    expected = sum((deltas[row, 4 * k : 4 * k + 4] - targets[row]).abs().sum() for row, k in ((1, 2), (3, 19), (4, 0)))
    assert torch.allclose(losses["loss_box_reg"], expected / 6)


def test_the_proposal_losses_are_divided_by_the_samples_asked_for():
    network = build(rpn_samples=64).rpn
    objectness, deltas = torch.randn(20, 1), torch.randn(20, 4)
    labels = [torch.tensor([1.0, 0, -1, 0, 1, -1, -1, 0, 0, 0]), torch.tensor([0.0] * 10)]
    targets = [torch.zeros(10, 4), torch.zeros(10, 4)]
    objectness_loss, box_loss = network.compute_loss(objectness, deltas, labels, targets)
    label = torch.cat(labels)
    valid = label >= 0
    entropy = F.binary_cross_entropy_with_logits(objectness[valid, 0], label[valid], reduction="sum")
    assert torch.allclose(objectness_loss, entropy / 128)
    assert torch.allclose(box_loss, (deltas[0].abs().sum() + deltas[4].abs().sum()) / 128)


def test_detections_lie_in_the_image_fall_in_score_and_do_not_repeat_each_other(samples):
    detector = build(score_threshold=0.01, detections_per_image=20).eval()
    with torch.no_grad():
        torch.nn.init.normal_(detector.roi_heads.box_predictor.cls_score.weight, std=1.0)
        found = detector(samples[:1])[0]
    height, width = samples[0].original_size
    assert len(found.scores) == 20
    assert (found.scores[:-1] >= found.scores[1:]).all()
    assert found.boxes.min() >= 0
    assert (found.boxes[:, 2:] <= (width, height)).all()
    overlaps = box_iou(torch.tensor(found.boxes), torch.tensor(found.boxes)).fill_diagonal_(0)
    same_class = torch.tensor(found.classes)[:, None] == torch.tensor(found.classes)
    assert (overlaps[same_class] <= 0.5 + 1e-5).all()


def test_an_image_is_detected_in_alike_alone_and_beside_a_larger_one(samples):
    detector = build(score_threshold=0.01).eval()
    with torch.no_grad():
        pair, alone = detector(samples[:2]), detector(samples[:1])
    assert pair[0].image_id == alone[0].image_id
    assert abs(pair[0].scores[:5] - alone[0].scores[:5]).max() < 0.05  # padding reaches some features, so not equal


def test_proposals_that_are_not_finite_stop_training(samples):
    detector = build().train()
    with torch.no_grad():
        detector.rpn.head.bbox_pred.bias.fill_(float("nan"))
    with pytest.raises(DivergenceError, match="proposals must be finite"):
        detector(samples)
