"""Faster R-CNN R50-C4 from detectron2, where it is installed; nothing here is imported before it is asked for."""

import importlib.util
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from sts_eval.detection.average_precision import Detections
from sts_eval.detection.backends.interface import PIXEL_MEAN, PIXEL_STD, Detector, to_detections
from sts_eval.detection.backends.resnet import ResNetShape
from sts_eval.detection.config import DetectionConfig
from sts_eval.detection.conversion import detectron2_name
from sts_eval.detection.errors import BackendMissingError, ConversionError
from sts_eval.detection.samples import Sample
from sts_eval.detection.voc import VOC_CLASSES

INSTALL_PAGE = "https://detectron2.readthedocs.io/en/latest/tutorials/install.html"
_DEPTHS = {(3, 4, 6, 3): 50, (3, 4, 23, 3): 101, (3, 8, 36, 3): 152}


def detectron2_is_installed() -> bool:
    """Whether detectron2 can be found; it is not imported."""
    return importlib.util.find_spec("detectron2") is not None


def require_detectron2() -> None:
    """Raise unless detectron2 can be found."""
    if not detectron2_is_installed():
        raise BackendMissingError(
            "backend 'detectron2' needs the package detectron2, which the package index does not have: install it as "
            f"{INSTALL_PAGE} says (with --no-build-isolation), or choose the backend torchvision"
        )


def build_config(config: DetectionConfig, shape: ResNetShape) -> Any:
    """detectron2's own config for the recipe; what is not set here is its default and named "d2" in our config."""
    from detectron2.config import get_cfg

    cfg = get_cfg()
    cfg.MODEL.DEVICE = "cpu"  # the module is moved by whoever trains it
    cfg.MODEL.WEIGHTS = ""
    cfg.MODEL.MASK_ON = False
    cfg.MODEL.PIXEL_MEAN, cfg.MODEL.PIXEL_STD = list(PIXEL_MEAN), list(PIXEL_STD)
    cfg.INPUT.FORMAT = "RGB"
    cfg.MODEL.BACKBONE.FREEZE_AT = 0
    resnets = cfg.MODEL.RESNETS
    resnets.DEPTH = _DEPTHS[shape.blocks]
    resnets.NORM = "naiveSyncBN"
    resnets.STRIDE_IN_1X1 = False
    resnets.STEM_OUT_CHANNELS, resnets.RES2_OUT_CHANNELS = shape.stem_channels, shape.out_channels
    resnets.WIDTH_PER_GROUP = shape.bottleneck_channels
    cfg.MODEL.ANCHOR_GENERATOR.SIZES = [list(config.anchor_sizes)]
    cfg.MODEL.ANCHOR_GENERATOR.ASPECT_RATIOS = [list(config.anchor_ratios)]
    rpn = cfg.MODEL.RPN
    rpn.PRE_NMS_TOPK_TRAIN, rpn.POST_NMS_TOPK_TRAIN = config.rpn_train_pre_nms, config.rpn_train_post_nms
    rpn.PRE_NMS_TOPK_TEST, rpn.POST_NMS_TOPK_TEST = config.rpn_test_pre_nms, config.rpn_test_post_nms
    rpn.NMS_THRESH, rpn.BATCH_SIZE_PER_IMAGE = config.rpn_nms, config.rpn_samples
    heads = cfg.MODEL.ROI_HEADS
    heads.NAME, heads.NUM_CLASSES = "Res5ROIHeads", len(VOC_CLASSES)
    heads.BATCH_SIZE_PER_IMAGE, heads.POSITIVE_FRACTION = config.roi_samples, config.roi_positive_fraction
    heads.SCORE_THRESH_TEST, heads.NMS_THRESH_TEST = config.score_threshold, config.box_nms
    cfg.TEST.DETECTIONS_PER_IMAGE = config.detections_per_image
    return cfg


class Detectron2Detector(Detector):
    """The detector of the detectron2 backend."""

    def __init__(self, config: DetectionConfig, shape: ResNetShape) -> None:
        require_detectron2()
        super().__init__()
        if shape.blocks not in _DEPTHS:
            raise ConversionError(
                f"detectron2 builds ResNets of depth 50, 101 and 152, got stages of {shape.blocks} blocks: "
                "choose the backend torchvision"
            )
        with warnings.catch_warnings():
            # Its import calls deprecated parts of torch; that is its maintainers' business.
            warnings.simplefilter("ignore")
            from detectron2.layers import get_norm
            from detectron2.modeling import build_model

        cfg = build_config(config, shape)
        self.model = build_model(cfg)
        # MoCo, Res5ROIHeadsExtraNorm
        self.model.roi_heads.res5.add_module("norm", get_norm(cfg.MODEL.RESNETS.NORM, shape.num_features))

    def forward(self, samples: Sequence[Sample]) -> dict[str, torch.Tensor] | list[Detections]:
        """The four losses in training mode, one `Detections` per sample in evaluation mode."""
        inputs = [self._to_input(sample) for sample in samples]
        if self.training:
            return self._losses(inputs, key=samples[0].key)
        found = [output["instances"] for output in self.model(inputs)]
        return [
            to_detections(sample, entry.pred_boxes.tensor, entry.scores, entry.pred_classes)
            for sample, entry in zip(samples, found, strict=True)
        ]

    def stage_features(self, images: torch.Tensor) -> list[torch.Tensor]:
        """The outputs of the four stages for normalised images [N, 3, H, W], before the added norm."""
        backbone = self.model.backbone
        features, outputs = backbone.stem(images), []
        for stage in (backbone.res2, backbone.res3, backbone.res4):
            features = stage(features)
            outputs.append(features)
        for name, block in self.model.roi_heads.res5.named_children():
            features = features if name == "norm" else block(features)
        return [*outputs, features]

    def tensor_name(self, name: str) -> str:
        """This backend's name of a tensor that the torchvision backend calls `name`."""
        if name == "rpn.head.":
            return "model.proposal_generator.rpn_head."
        return "model." + detectron2_name(name)

    def _losses(self, inputs: list[dict[str, Any]], *, key: int) -> dict[str, torch.Tensor]:
        from detectron2.utils.events import EventStorage

        device = next(self.model.parameters()).device
        # It samples from the global generator: seed that one for the call alone, by the batch.
        with EventStorage(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.default_generator.manual_seed(key)
            if device.type == "cuda":
                torch.cuda.default_generators[device.index].manual_seed(key)
            losses: dict[str, torch.Tensor] = self.model(inputs)
        return losses

    def _to_input(self, sample: Sample) -> dict[str, Any]:
        from detectron2.structures import Boxes, Instances

        height, width = sample.original_size
        entry: dict[str, Any] = {"image": sample.image, "height": height, "width": width}
        if self.training:
            size = (sample.image.shape[1], sample.image.shape[2])
            entry["instances"] = Instances(size, gt_boxes=Boxes(sample.boxes), gt_classes=sample.classes)
        return entry
