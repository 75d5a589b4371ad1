"""A backbone fills the detector completely and gives the same features, or is refused."""

from dataclasses import replace

import pytest
import timm
import torch
import torchvision
from torch import nn

from sts_eval.detection import DetectionConfig
from sts_eval.detection.backends.choice import build_detector
from sts_eval.detection.backends.resnet import BottleneckResNet, ResNetShape, infer_shape
from sts_eval.detection.conversion import compare_features, detector_name, detectron2_name, load_trunk_, trunk_state
from sts_eval.detection.errors import BackendMissingError, ConversionError
from sts_eval.detection.synthetic import NARROW_SHAPE

CONFIG = DetectionConfig(data_root="VOCdevkit", backend="torchvision")


def narrow(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        backbone = BottleneckResNet(NARROW_SHAPE)
        for module in backbone.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.running_var, 0.5, 1.5)
                nn.init.normal_(module.running_mean)
    return backbone


@pytest.fixture
def detector():
    return build_detector(CONFIG, NARROW_SHAPE)


@pytest.mark.slow
@pytest.mark.parametrize("library", ["torchvision", "timm"])
def test_all_318_tensors_of_resnet50_are_used_and_its_features_are_kept(library):
    backbone = (
        torchvision.models.resnet50() if library == "torchvision" else timm.create_model("resnet50", num_classes=0)
    )
    state = trunk_state(backbone)
    assert infer_shape(state) == ResNetShape()
    detector = build_detector(CONFIG, ResNetShape())
    assert load_trunk_(detector, state) == 318
    assert compare_features(backbone, detector, image_size=64) == 0.0


def test_what_a_backbone_does_not_bring_is_the_new_layers_and_nothing_else(detector):
    before = {name: tensor.clone() for name, tensor in detector.state_dict().items()}
    load_trunk_(detector, trunk_state(narrow()))
    filled = {detector_name(name) for name in trunk_state(narrow())}
    new = set(before) - filled
    assert {name.rsplit(".", 1)[0] for name in new} == {
        "rpn.head.conv.0.0",
        "rpn.head.cls_logits",
        "rpn.head.bbox_pred",
        "roi_heads.box_predictor.cls_score",
        "roi_heads.box_predictor.bbox_pred",
        "roi_heads.box_head.norm",
    }
    assert all(torch.equal(before[name], detector.state_dict()[name]) for name in new)


def test_the_backbones_values_arrive(detector):
    backbone = narrow()
    load_trunk_(detector, trunk_state(backbone))
    state = detector.state_dict()
    assert torch.equal(state["backbone.layer2.1.bn3.running_var"], backbone.layer2[1].bn3.running_var)
    assert torch.equal(
        state["roi_heads.box_head.layer4.0.downsample.0.weight"], backbone.layer4[0].downsample[0].weight
    )
    assert compare_features(backbone, detector) == 0.0


def test_a_resnet_inside_another_module_is_found_and_its_head_is_left_out(detector):
    wrapper = nn.ModuleDict({"encoder": narrow(), "predictor": nn.Linear(3, 3)})
    plain = trunk_state(narrow())
    assert trunk_state(wrapper).keys() == plain.keys()
    assert load_trunk_(detector, trunk_state(wrapper)) == len(plain)


@pytest.mark.parametrize("lost", ["layer3.2.conv2.weight", "bn1.running_mean", "layer4.2.bn3.num_batches_tracked"])
def test_a_missing_tensor_is_refused_and_named(detector, lost):
    state = trunk_state(narrow())
    del state[lost]
    before = {name: tensor.clone() for name, tensor in detector.state_dict().items()}
    with pytest.raises(ConversionError, match=detector_name(lost)):
        load_trunk_(detector, state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in detector.state_dict().items())


def test_a_tensor_with_an_unknown_name_is_refused_and_named(detector):
    state = {**trunk_state(narrow()), "layer1.0.se.weight": torch.zeros(1)}
    with pytest.raises(ConversionError, match=r"unknown: backbone.layer1.0.se.weight"):
        load_trunk_(detector, state)


def test_a_tensor_of_another_shape_is_refused_and_named(detector):
    state = trunk_state(narrow())
    state["layer2.0.conv2.weight"] = state["layer2.0.conv2.weight"][:, :, :1, :1]
    with pytest.raises(ConversionError, match=r"for backbone\.layer2\.0\.conv2\.weight"):
        load_trunk_(detector, state)


def test_a_stride_in_another_convolution_is_found_by_the_features_although_all_tensors_fit(detector):
    backbone = narrow()
    backbone.layer3[0].conv1.stride, backbone.layer3[0].conv2.stride = (2, 2), (1, 1)
    load_trunk_(detector, trunk_state(backbone))
    with pytest.raises(ConversionError, match="must give equal features"):
        compare_features(backbone, detector)


def test_networks_that_are_no_bottleneck_resnet_for_large_images_are_refused():
    with pytest.raises(ConversionError, match=r"without layer1.0.conv3.weight"):
        infer_shape(trunk_state(torchvision.models.resnet18()))
    with pytest.raises(ConversionError, match=r"must hold one ResNet .* got 0 in VisionTransformer"):
        trunk_state(timm.create_model("vit_tiny_patch16_224", num_classes=0))
    cifar = narrow()
    cifar.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
    with pytest.raises(ConversionError, match=r"7x7 stem .* got one with a 3x3 stem"):
        infer_shape(trunk_state(cifar))


def test_features_are_compared_in_full_precision_whatever_the_backbone_is_kept_in(detector):
    backbone = narrow()
    load_trunk_(detector, trunk_state(backbone))
    assert compare_features(backbone.double(), detector) == 0.0


def test_the_backbone_is_left_as_it_was(detector):
    backbone = narrow().train()
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    load_trunk_(detector, trunk_state(backbone))
    compare_features(backbone, detector)
    assert backbone.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in backbone.state_dict().items())
    assert not any(module._forward_hooks for module in backbone.modules())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("backbone.conv1.weight", "backbone.stem.conv1.weight"),
        ("backbone.bn1.bias", "backbone.stem.conv1.norm.bias"),
        ("backbone.layer1.0.conv1.weight", "backbone.res2.0.conv1.weight"),
        ("backbone.layer3.5.bn2.running_var", "backbone.res4.5.conv2.norm.running_var"),
        ("backbone.layer2.0.downsample.0.weight", "backbone.res3.0.shortcut.weight"),
        ("roi_heads.box_head.layer4.0.downsample.1.weight", "roi_heads.res5.0.shortcut.norm.weight"),
        ("roi_heads.box_head.norm.weight", "roi_heads.res5.norm.weight"),
        ("rpn.head.cls_logits.bias", "proposal_generator.rpn_head.objectness_logits.bias"),
        ("roi_heads.box_predictor.bbox_pred.weight", "roi_heads.box_predictor.bbox_pred.weight"),
    ],
)
def test_each_tensor_has_a_name_in_detectron2(name, expected):
    assert detectron2_name(name) == expected


def test_new_layers_depend_on_the_seed_alone():
    first, second = (build_detector(CONFIG, NARROW_SHAPE).state_dict() for _ in range(2))
    torch.manual_seed(99)
    other = build_detector(replace(CONFIG, seed=1), NARROW_SHAPE).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["rpn.head.cls_logits.weight"], other["rpn.head.cls_logits.weight"])


def test_a_missing_detectron2_is_an_error_that_says_where_to_get_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BackendMissingError) as error:
        build_detector(replace(CONFIG, backend="detectron2"), NARROW_SHAPE)
    assert "https://detectron2.readthedocs.io" in str(error.value)
    assert str(error.value).endswith("choose the backend torchvision")
