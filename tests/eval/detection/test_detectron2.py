"""Where detectron2 is installed: both backends, both evaluators and both data readers give the same numbers.

Set STS_DATA to a folder with voc2012_subset.tar to compare on photographs as well.
"""

import itertools
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from sts_eval.detection import (
    VOC_CLASSES,
    DetectionConfig,
    Detections,
    detection_transfer,
    evaluate_voc,
    read_voc_split,
)
from sts_eval.detection.backends.choice import build_detector
from sts_eval.detection.backends.detectron2 import build_config, detectron2_is_installed
from sts_eval.detection.backends.resnet import BottleneckResNet, ResNetShape
from sts_eval.detection.conversion import compare_features, detectron2_name, load_trunk_, trunk_state
from sts_eval.detection.precise_bn import update_statistics_
from sts_eval.detection.samples import TestSamples, TrainingVisits, make_sample
from sts_eval.detection.schedule import build_optimizer, learning_rate
from sts_eval.detection.synthetic import NARROW_SHAPE, narrow_config, write_synthetic_voc

pytestmark = [
    pytest.mark.skipif(not detectron2_is_installed(), reason="detectron2 is not installed"),
    # detectron2 calls deprecated parts of torch, numpy and Pillow; that is not ours to mend.
    pytest.mark.filterwarnings("ignore"),
]

LOSSES = {  # ours: detectron2's
    "loss_objectness": "loss_rpn_cls",
    "loss_rpn_box_reg": "loss_rpn_loc",
    "loss_classifier": "loss_cls",
    "loss_box_reg": "loss_box_reg",
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return write_synthetic_voc(tmp_path_factory.mktemp("voc"), splits={"trainval": 4, "test": 40}, classes=VOC_CLASSES)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    archive = Path(os.environ.get("STS_DATA", "")) / "voc2012_subset.tar"
    if not archive.is_file():
        pytest.skip("STS_DATA does not point to a folder with voc2012_subset.tar")
    folder = tmp_path_factory.mktemp("photographs")
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    return folder


def backbone_of(shape, seed=0):
    """A random ResNet whose features neither vanish nor explode."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        backbone = BottleneckResNet(shape)
        for module in backbone.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.normal_(module.running_mean, std=0.1)
                nn.init.uniform_(module.running_var, 0.5, 1.5)
                nn.init.uniform_(module.weight, 0.3, 0.7)
    return backbone


def both_detectors(config, shape=NARROW_SHAPE):
    """One set of weights in both backends, with heads that are far from silent."""
    ours = build_detector(replace(config, backend="torchvision"), shape)
    load_trunk_(ours, trunk_state(backbone_of(shape)))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            if name.startswith(("rpn.head.", "roi_heads.box_predictor.")):
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.05)
    theirs = build_detector(replace(config, backend="detectron2"), shape)
    assert len(ours.state_dict()) == len(theirs.state_dict())
    theirs.load_state_dict({theirs.tensor_name(name): tensor for name, tensor in ours.state_dict().items()})
    return ours, theirs


def registered(root, split, year):
    """Register a split with detectron2 under a new name."""
    from detectron2.data.datasets import register_pascal_voc

    name = f"ours_{next(COUNTER)}"
    register_pascal_voc(name, str(next(Path(root).rglob("VOC20*"))), split, year)
    return name


COUNTER = itertools.count()


def test_detectron2_is_configured_as_mocos_recipe_says():
    # facebookresearch/moco 132aea9, detection/configs: Base-RCNN-C4-BN.yaml, pascal_voc_R_50_C4_24k.yaml and _moco.yaml
    ours = DetectionConfig(data_root="unused")
    cfg = build_config(ours, ResNetShape())
    assert cfg.MODEL.BACKBONE.FREEZE_AT == 0
    assert cfg.MODEL.RESNETS.NORM == "naiveSyncBN"
    assert cfg.MODEL.RESNETS.STRIDE_IN_1X1 is False
    assert cfg.MODEL.RESNETS.DEPTH == 50
    assert cfg.INPUT.FORMAT == "RGB"
    assert list(cfg.MODEL.PIXEL_MEAN) == pytest.approx([123.675, 116.280, 103.530])
    assert list(cfg.MODEL.PIXEL_STD) == pytest.approx([58.395, 57.120, 57.375])
    assert cfg.MODEL.MASK_ON is False
    assert cfg.MODEL.ROI_HEADS.NUM_CLASSES == 20
    assert (cfg.MODEL.RPN.PRE_NMS_TOPK_TEST, cfg.MODEL.RPN.POST_NMS_TOPK_TEST) == (6000, 1000)
    # The schedule is our loop's: detectron2's own trainer is not used.
    assert (ours.learning_rate, ours.lr_steps, ours.iterations) == (0.02, (18_000, 22_000), 24_000)
    assert (ours.warmup_iterations, ours.batch_size, ours.precise_bn_iterations) == (100, 16, 200)
    assert (ours.train_sizes, ours.test_size) == (tuple(range(480, 801, 32)), 800)


def test_all_318_tensors_fill_detectron2s_resnet50_and_its_features_are_equal():
    backbone = backbone_of(ResNetShape())
    detector = build_detector(DetectionConfig(data_root="unused"), ResNetShape())
    before = {name: tensor.clone() for name, tensor in detector.state_dict().items()}
    assert load_trunk_(detector, trunk_state(backbone)) == 318
    assert compare_features(backbone, detector) <= 1e-6
    unloaded = {name for name, tensor in detector.state_dict().items() if torch.equal(tensor, before[name])}
    counters = {name for name in before if name.endswith("num_batches_tracked")}
    allowed = ("model.proposal_generator.rpn_head.", "model.roi_heads.box_predictor.", "model.roi_heads.res5.norm.")
    biases = {name for name in before if name.endswith("norm.bias")}  # zero in both
    assert {name for name in unloaded - counters - biases if not name.startswith(allowed)} == set()
    assert len([name for name in before if name.startswith(allowed)]) == 6 + 4 + 5


def assert_equal_detections(ours, theirs, samples):
    """Compare detections after fitting the norms to the samples, without which all features look alike."""
    update_statistics_(ours, [samples[:2]])
    with torch.no_grad():
        ours.roi_heads.box_predictor.cls_score.weight.mul_(4)
        ours.roi_heads.box_predictor.cls_score.bias.zero_()
    theirs.load_state_dict({theirs.tensor_name(name): tensor for name, tensor in ours.state_dict().items()})
    with torch.no_grad():
        pairs = [(ours([sample])[0], theirs([sample])[0]) for sample in samples]
    for first, second in pairs:
        assert len(first.scores) == len(second.scores) > 20
        assert (first.classes == second.classes).all()
        assert abs(first.scores - second.scores).max() <= 1e-6
        assert abs(first.boxes - second.boxes).max() <= 1e-3
    assert len({int(k) for first, _ in pairs for k in first.classes}) > 5


def test_one_set_of_weights_detects_the_same_in_both_backends(tree):
    config = replace(narrow_config(tree), score_threshold=0.02)
    ours, theirs = (detector.eval() for detector in both_detectors(config))
    images = read_voc_split(tree, "voc_2007_test").images[:4]
    assert_equal_detections(ours, theirs, [TestSamples(images, config)[index] for index in range(4)])


def test_photographs_are_detected_in_alike_by_both_backends(photographs):
    config = replace(narrow_config(photographs), score_threshold=0.02, test_size=400, max_size=700)
    ours, theirs = (detector.eval() for detector in both_detectors(config))
    images = read_voc_split(photographs, "voc_2012_val").images[:4]
    assert_equal_detections(ours, theirs, [TestSamples(images, config)[index] for index in range(4)])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_resnet50_at_its_real_size_detects_the_same_in_both_backends(photographs):
    config = DetectionConfig(data_root=str(photographs), score_threshold=0.02)
    ours, theirs = (detector.eval() for detector in both_detectors(config, ResNetShape()))
    images = read_voc_split(photographs, "voc_2012_val").images
    assert_equal_detections(ours, theirs, [TestSamples(images, config)[index] for index in (3, 7)])


def exhaustive(config):
    """Sample every anchor and every proposal, so that nothing is left to chance."""
    return replace(config, rpn_samples=100_000, roi_samples=10_000, roi_positive_fraction=1.0)


def test_losses_and_gradients_are_equal_when_nothing_is_left_to_chance(tree):
    config = exhaustive(narrow_config(tree))
    ours, theirs = (detector.train() for detector in both_detectors(config))
    images = read_voc_split(tree, "voc_2007_trainval").images
    samples = [TrainingVisits(images, config)[index] for index in range(3)]
    first, second = ours(samples), theirs(samples)
    for name, other in LOSSES.items():
        assert first[name].item() == pytest.approx(second[other].item(), rel=1e-5), name
    assert first["loss_box_reg"] > 0
    sum(first.values()).backward()
    sum(second.values()).backward()
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        other = gradients[theirs.tensor_name(name)]
        assert (parameter.grad - other).abs().max() <= 2e-3 * other.abs().max() + 1e-7, name


def test_sampled_losses_agree_on_average(tree):
    config = narrow_config(tree)
    ours, theirs = (detector.train() for detector in both_detectors(config))
    images = read_voc_split(tree, "voc_2007_trainval").images[:2]
    sums = [dict.fromkeys(LOSSES, 0.0), dict.fromkeys(LOSSES, 0.0)]
    with torch.no_grad():
        for key in range(12):
            samples = [make_sample(image, short_side=128, max_size=300, flip=False, key=key) for image in images]
            for total, losses, names in zip(
                sums, (ours(samples), theirs(samples)), (LOSSES, LOSSES.values()), strict=True
            ):
                for name, other in zip(LOSSES, names, strict=True):
                    total[name] += losses[other].item() / 12
    for name in LOSSES:
        assert sums[0][name] == pytest.approx(sums[1][name], rel=0.15), name


def test_detectron2s_losses_are_a_function_of_the_samples(tree):
    _, theirs = both_detectors(narrow_config(tree))
    theirs.train()
    image = read_voc_split(tree, "voc_2007_trainval").images[1]
    samples = [make_sample(image, short_side=128, max_size=300, flip=False, key=key) for key in (1, 1, 2)]
    before = torch.get_rng_state()
    with torch.no_grad():
        first, second, third = (theirs([sample])["loss_rpn_cls"].item() for sample in samples)
    assert first == second != third
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("flip", [False, True])
def test_images_and_boxes_are_resized_and_mirrored_as_by_detectron2(tree, flip):
    from detectron2.data import transforms
    from detectron2.data.detection_utils import read_image

    for image in read_voc_split(tree, "voc_2007_trainval").images:
        ours = make_sample(image, short_side=150, max_size=170, flip=flip, key=0)
        pixels = transforms.AugInput(read_image(image.path, "RGB"))
        steps = [transforms.ResizeShortestEdge(150, 170), transforms.RandomFlip(prob=1.0 if flip else 0.0)]
        applied = transforms.AugmentationList(steps)(pixels)
        assert np.array_equal(ours.image.numpy(), pixels.image.transpose(2, 0, 1))
        assert np.allclose(ours.boxes.numpy(), applied.apply_box(image.boxes), atol=1e-4)


def test_annotations_are_read_as_by_detectron2(tree):
    assert_equal_annotations(tree, "voc_2007_trainval")


def test_annotations_of_photographs_are_read_as_by_detectron2(photographs):
    assert_equal_annotations(photographs, "voc_2012_train")


def assert_equal_annotations(root, name):
    from detectron2.data.datasets.pascal_voc import CLASS_NAMES, load_voc_instances

    split = read_voc_split(root, name)
    folder = split.images[0].path.parents[1]
    theirs = load_voc_instances(str(folder), name.split("_")[2], CLASS_NAMES)
    assert CLASS_NAMES == VOC_CLASSES
    assert len(theirs) == len(split.images)
    for image, other in zip(split.images, theirs, strict=True):
        assert (image.image_id, image.height, image.width) == (other["image_id"], other["height"], other["width"])
        assert image.classes.tolist() == [entry["category_id"] for entry in other["annotations"]]
        assert image.boxes.tolist() == [entry["bbox"] for entry in other["annotations"]]


def noisy_detections(split, rng):
    """Jittered objects and random boxes; within a class all scores differ in the third digit."""
    entries = []
    scores = {k: iter(rng.permutation(np.arange(1, 1000)) / 1000) for k in range(20)}
    for image in split.images:
        boxes = np.concatenate([image.boxes + rng.normal(0, s, image.boxes.shape) for s in (1.5, 4, 25)])
        boxes[:, 2:] = np.maximum(boxes[:, 2:], boxes[:, :2] + 2)
        classes = np.concatenate([image.classes] * 3)
        entries.append(
            Detections(
                image_id=image.image_id,
                boxes=boxes.astype(np.float32),
                scores=np.array([next(scores[int(k)]) for k in classes], dtype=np.float32),
                classes=classes,
            )
        )
    return entries


def score_with_detectron2(name, detections):
    from detectron2.evaluation import PascalVOCDetectionEvaluator
    from detectron2.structures import Boxes, Instances

    evaluator = PascalVOCDetectionEvaluator(name)
    evaluator.reset()
    for entry in detections:
        instances = Instances((1, 1))
        instances.pred_boxes = Boxes(torch.tensor(entry.boxes))
        instances.scores, instances.pred_classes = torch.tensor(entry.scores), torch.tensor(entry.classes)
        evaluator.process([{"image_id": entry.image_id}], [{"instances": instances}])
    return evaluator.evaluate()["bbox"]


def assert_equal_scores(root, split_name, year, *, tolerance=1e-9):
    split = replace(read_voc_split(root, split_name), year=year)
    detections = noisy_detections(split, np.random.default_rng(0))
    theirs = score_with_detectron2(registered(root, split_name.split("_")[2], year), detections)
    ours = evaluate_voc(split, detections)
    assert ours.absent_classes == ()
    assert 20 < ours.ap < 80
    values = (ours.ap, ours.ap50, ours.ap75)
    assert values == pytest.approx((theirs["AP"], theirs["AP50"], theirs["AP75"]), abs=tolerance)


@pytest.mark.parametrize("year", [2007, 2012])
def test_both_evaluators_give_the_same_scores(tree, year):
    assert_equal_scores(tree, "voc_2007_test", year)


@pytest.mark.parametrize("year", [2007, 2012])
def test_both_evaluators_give_the_same_scores_on_photographs(photographs, year):
    assert_equal_scores(photographs, "voc_2012_val", year)


def test_the_learning_rate_and_the_parameter_groups_are_detectron2s():
    from detectron2.config import get_cfg
    from detectron2.solver import build_lr_scheduler
    from detectron2.solver import build_optimizer as their_optimizer

    config = replace(DetectionConfig(data_root="unused").scaled(400), warmup_iterations=30)
    cfg = get_cfg()
    solver = cfg.SOLVER
    solver.BASE_LR, solver.STEPS, solver.MAX_ITER, solver.WARMUP_ITERS = 0.02, config.lr_steps, 400, 30
    detector = build_detector(replace(config, backend="torchvision"), NARROW_SHAPE)
    theirs = their_optimizer(cfg, detector)
    scheduler = build_lr_scheduler(cfg, theirs)
    for iteration in range(400):
        assert learning_rate(iteration, config) == pytest.approx(theirs.param_groups[0]["lr"], rel=1e-6), iteration
        theirs.step()
        scheduler.step()
    ours = {id(p): g["weight_decay"] for g in build_optimizer(detector, config).param_groups for p in g["params"]}
    assert ours == {id(p): g["weight_decay"] for g in theirs.param_groups for p in g["params"]}
    assert {group["momentum"] for group in theirs.param_groups} == {config.momentum}


def test_precise_statistics_are_those_of_fvcore(tree):
    from detectron2.utils.events import EventStorage
    from fvcore.nn.precise_bn import update_bn_stats

    config = exhaustive(narrow_config(tree))
    visits = TrainingVisits(read_voc_split(tree, "voc_2007_trainval").images, config)
    batches = list(visits.batches(0, 2))
    first, second = (both_detectors(config)[1].train() for _ in range(2))
    update_statistics_(first, batches)
    with EventStorage():
        update_bn_stats(second, batches, num_iters=2)
    for name, tensor in second.state_dict().items():
        if "running" in name:
            assert torch.allclose(first.state_dict()[name], tensor, rtol=1e-4, atol=1e-6), name


def test_detection_transfer_runs_on_detectron2_and_says_so(tree, tmp_path):
    config = narrow_config(tree, iterations=6)
    small = replace(
        config, backend="detectron2", batch_size=2, train_sizes=(96,), test_size=96, precise_bn_iterations=1
    )
    metrics = []
    result = detection_transfer(
        backbone_of(NARROW_SHAPE), replace(small, log_every=1), folder=tmp_path, on_metrics=metrics.append
    )
    assert result.backend == "detectron2"
    assert "detectron2" in result.versions
    assert not any("backend" in reason for reason in result.not_comparable)
    assert len(metrics) == 6
    assert {*LOSSES.values()} <= metrics[0].keys()
    assert (tmp_path / "result.json").is_file()


def test_names_of_all_tensors_are_translated_one_to_one():
    ours, theirs = both_detectors(narrow_config("unused"))
    translated = [detectron2_name(name) for name in ours.state_dict()]
    assert sorted(translated) == sorted(theirs.model.state_dict())
