"""The recipe of detection transfer as a value: MoCo's VOC07+12 settings for Faster R-CNN R50-C4, 24k iterations.

The defaults are the paper's protocol. Every number can be changed, for instance to run on a small tree and a CPU; the
result then says in which settings it departs from the protocol.
"""

import math
import re
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from sts_core import ConfigError
from sts_core.fields import free, incidental, is_free

DetectorBackend = Literal["detectron2", "torchvision"]
SPLIT_NAME = re.compile(r"voc_(\d{4})_(\w+)")


@dataclass(frozen=True, kw_only=True)
class DetectionConfig:
    """How a backbone is fine-tuned and scored on VOC. "MoCo" is detection/configs of facebookresearch/moco at 132aea9,
    "d2" the defaults of detectron2 that it inherits.
    """

    data_root: str = incidental()
    """The folder that holds VOC2007 and VOC2012 (usually called VOCdevkit), or its parent."""
    backend: DetectorBackend = free("detectron2")
    """Which implementation of Faster R-CNN R50-C4; "torchvision" runs everywhere, the paper's rows use detectron2."""
    seed: int = free(0)
    """Order, augmentation, sampling and new layers are functions of this number, the iteration and the image."""

    # Data: MoCo, pascal_voc_R_50_C4_24k.yaml. The paper's text says "VOC12 train"; the code it names uses trainval.
    train_splits: tuple[str, ...] = ("voc_2007_trainval", "voc_2012_trainval")
    """Splits to train on, each voc_<year>_<image set>."""
    test_split: str = "voc_2007_test"
    """Split to score on; 2007 means 11-point average precision, later years the area under the curve."""
    train_sizes: tuple[int, ...] = tuple(range(480, 801, 32))  # MoCo
    """Lengths of the short side, one chosen per image and visit."""
    test_size: int = 800  # MoCo
    """Length of the short side in tests."""
    max_size: int = 1333  # d2
    """Upper bound of the long side."""
    horizontal_flip: bool = True  # d2
    """Mirror half of the training images."""
    group_size: int = 2  # MoCo: 16 images on 8 GPUs
    """Training images come in groups of this many that are all landscape or all portrait, which saves padding."""

    # Optimisation
    batch_size: int = 16  # MoCo
    """Images per iteration over all workers."""
    iterations: int = 24_000  # MoCo
    """Optimizer steps."""
    learning_rate: float = 0.02  # MoCo
    """Peak learning rate for `batch_size`; it is not scaled."""
    lr_steps: tuple[int, ...] = (18_000, 22_000)  # MoCo
    """Iterations at which the learning rate is multiplied by `lr_gamma`."""
    lr_gamma: float = 0.1  # d2
    """Factor of one learning-rate step."""
    warmup_iterations: int = 100  # MoCo
    """Length of the linear warm-up."""
    warmup_factor: float = 1e-3  # d2
    """The warm-up starts at this fraction of the learning rate."""
    momentum: float = 0.9  # d2
    """Momentum of SGD."""
    weight_decay: float = 1e-4  # d2
    """Weight decay of all parameters but those of normalisation layers."""
    weight_decay_norm: float = 0.0  # d2
    """Weight decay of the parameters of normalisation layers."""
    precise_bn_iterations: int = 200  # MoCo
    """Batches over which the batch-norm statistics are averaged after training; 0 keeps the running ones."""

    # Anchors and proposals
    anchor_sizes: tuple[float, ...] = (32.0, 64.0, 128.0, 256.0, 512.0)  # d2
    """Square roots of the anchors' areas in pixels of the resized image."""
    anchor_ratios: tuple[float, ...] = (0.5, 1.0, 2.0)  # d2
    """Height / width of the anchors."""
    rpn_train_pre_nms: int = 12_000  # d2
    """Proposals that enter non-maximum suppression in training."""
    rpn_train_post_nms: int = 2_000  # d2
    """Proposals that leave it in training."""
    rpn_test_pre_nms: int = 6_000  # MoCo, Base-RCNN-C4
    """Proposals that enter non-maximum suppression in tests."""
    rpn_test_post_nms: int = 1_000  # MoCo, Base-RCNN-C4
    """Proposals that leave it in tests."""
    rpn_nms: float = 0.7  # d2
    """Overlap above which the weaker of two proposals is dropped."""
    rpn_samples: int = 256  # d2
    """Anchors per image in the loss, at most half of them positive."""

    # Box head
    roi_samples: int = 512  # d2
    """Proposals per image in the loss."""
    roi_positive_fraction: float = 0.25  # d2
    """Upper bound of the share of positive ones among them."""
    score_threshold: float = 0.05  # d2
    """Detections below this score are dropped."""
    box_nms: float = 0.5  # d2
    """Overlap above which the weaker of two detections of one class is dropped."""
    detections_per_image: int = 100  # d2
    """Upper bound of the detections in an image."""

    # Running
    num_workers: int = incidental(4)
    """Loader processes per training worker; 0 reads in the training process."""
    checkpoint_every: int = incidental(1_000)
    """Iterations between checkpoints."""
    keep_checkpoints: int = incidental(2)
    """How many checkpoints stay on disk; two survive a torn newest one."""
    log_every: int = incidental(20)
    """Iterations between lines of metrics."""

    def __post_init__(self) -> None:
        if self.backend not in get_args(DetectorBackend):
            raise ConfigError(f"backend must be detectron2 or torchvision, got {self.backend!r}", fields=("backend",))
        _check_splits((*self.train_splits, self.test_split))
        for name in ("train_sizes", "anchor_sizes", "anchor_ratios", "train_splits"):
            _check_sequence(name, getattr(self, name))
        _check_numbers(self)
        _check_schedule(self)

    @property
    def num_anchors(self) -> int:
        """Anchors at each position of the feature map."""
        return len(self.anchor_sizes) * len(self.anchor_ratios)

    def scaled(self, iterations: int) -> "DetectionConfig":
        """The same schedule stretched to `iterations`: steps at the same fractions, warm-up at most a half."""
        ratio = iterations / self.iterations
        steps = {round(step * ratio) for step in self.lr_steps}  # very short schedules lose steps to rounding
        return replace(
            self,
            iterations=iterations,
            lr_steps=tuple(sorted(step for step in steps if 0 < step < iterations)),
            warmup_iterations=min(self.warmup_iterations, iterations // 2),
        )

    def with_batch_size(self, batch_size: int) -> "DetectionConfig":
        """The linear scaling rule for fewer GPUs: learning rate with the batch, iterations against it (moco#11)."""
        ratio = batch_size / self.batch_size
        stretched = self.scaled(round(self.iterations / ratio))
        return replace(stretched, batch_size=batch_size, learning_rate=self.learning_rate * ratio)

    def differences(self) -> dict[str, tuple[Any, Any]]:
        """Settings that differ from the protocol: name -> (protocol's value, this one's)."""
        different = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if not is_free(field) and value != field.default:
                different[field.name] = (field.default, value)
        return different


def _check_splits(names: tuple[str, ...]) -> None:
    for name in names:
        if not SPLIT_NAME.fullmatch(name):
            raise ConfigError(
                f"a split must be called voc_<year>_<image set>, got {name!r}: for instance voc_2007_test",
                fields=("train_splits", "test_split"),
            )


def _check_sequence(name: str, values: object) -> None:
    if not isinstance(values, tuple) or not values:
        raise ConfigError(
            f"{name} must be a tuple with at least one entry, got {values!r}: pass for instance (480, 512)",
            fields=(name,),
        )
    for value in values:
        if not isinstance(value, str):
            _check_positive(name, value)


def _check_positive(name: str, value: object, *, zero: bool = False) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value < 0 or (value == 0 and not zero):  # type: ignore[operator]
        raise ConfigError(f"{name} must be {'at least' if zero else 'above'} 0, got {value!r}", fields=(name,))


def _check_numbers(config: DetectionConfig) -> None:
    may_be_zero = {
        "warmup_iterations", "weight_decay", "weight_decay_norm", "momentum", "precise_bn_iterations", "num_workers",
        "score_threshold", "seed",
    }  # fmt: skip
    for field in fields(config):
        if field.type is int or field.type is float:
            _check_positive(field.name, getattr(config, field.name), zero=field.name in may_be_zero)
        if field.type is int and not isinstance(getattr(config, field.name), int):
            value = getattr(config, field.name)
            raise ConfigError(f"{field.name} must be a whole number, got {value!r}", fields=(field.name,))
    for name in ("rpn_nms", "box_nms", "roi_positive_fraction", "score_threshold", "warmup_factor"):
        if getattr(config, name) > 1:
            raise ConfigError(
                f"{name} must be at most 1, got {getattr(config, name)}: it is a fraction", fields=(name,)
            )


def _check_schedule(config: DetectionConfig) -> None:
    if config.batch_size % config.group_size:
        raise ConfigError(
            f"group_size must divide batch_size, got {config.group_size} and {config.batch_size}: use 1",
            fields=("group_size", "batch_size"),
        )
    steps = config.lr_steps
    if list(steps) != sorted(set(steps)) or any(not 0 < step < config.iterations for step in steps):
        raise ConfigError(
            f"lr_steps must increase and lie between 0 and iterations={config.iterations}, got {steps}: "
            "move them, too (DetectionConfig.scaled moves all)",
            fields=("lr_steps", "iterations"),
        )
    if config.warmup_iterations > config.iterations:
        raise ConfigError(
            f"warmup_iterations must not exceed iterations={config.iterations}, got {config.warmup_iterations}: "
            "shorten it, too (DetectionConfig.scaled moves all)",
            fields=("warmup_iterations", "iterations"),
        )
