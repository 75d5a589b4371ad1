"""Methods that the paper has no rows of, as their authors train them: DINO, MoCo v3 (in small, too), Mean Teacher."""

from typing import TYPE_CHECKING, Literal

from sts_pipelines.catalog.families import EIGHT_GPUS, in_small
from sts_pipelines.catalog.registry import named

if TYPE_CHECKING:
    from sts_pipelines.config.pipeline import PipelineConfig

DINO: dict[Literal["vit_small", "resnet50"], tuple[str, str, str]] = {
    "vit_small": ("vit-s16", "ViT-S/16", "about 69.3 % k-NN, as DINO's README says of its own code"),
    "resnet50": (
        "resnet50",
        "ResNet-50",
        "a teacher far above random features; DINO's README has no number for so short a run",
    ),
}
"""The names of a network, and what to expect."""
MOCO_V3: dict[Literal["resnet50", "vit_small"], tuple[str, int, int, str, str]] = {
    "resnet50": ("resnet50", 100, 16, "ResNet-50", "68.9 % linear top-1 of the student"),
    "vit_small": (
        "vit-s16",
        300,
        8,
        "ViT-S/16",
        "somewhat less than the 73.2 % linear top-1 of the student, with batches of 4096 and twelve heads of attention",
    ),
}
"""The name of a network, epochs, GPUs, title and what the authors have."""
MOCO_V3_SMALL = {"none": (0.0, 0.0), "se": (0.0, 0.9), "tma": (0.9, 0.0), "sts": (0.9, 0.7)}


def _dino(backbone: Literal["vit_small", "resnet50"]) -> None:
    short, title, expected = DINO[backbone]
    name = f"dino-imagenet-100ep-{short}"

    @named(name, paper="-", hardware=EIGHT_GPUS)
    def build() -> "PipelineConfig":
        from sts_pipelines.catalog.configs import dino_imagenet

        return dino_imagenet(name, backbone=backbone)

    build.__doc__ = f"""DINO, {title}, 100 epochs of ImageNet with eight small crops, as its README trains it.

    sts run {name} --data.root /data/imagenet

    Spatially smoothed with --smoothing.preserve-probability 0.5. Hardware: 8 GPUs with memory for 64 images each.
    Time: {{time}}.
    Expect {expected}.
    """


for _backbone in DINO:
    _dino(_backbone)


def _moco_v3(backbone: Literal["resnet50", "vit_small"]) -> None:
    short, epochs, gpus, title, known = MOCO_V3[backbone]
    name, hardware = f"moco-v3-imagenet-{epochs}ep-{short}", f"{gpus} GPUs, 32 GB each"

    @named(name, paper="-", hardware=hardware)
    def build() -> "PipelineConfig":
        from sts_pipelines.catalog.configs import moco_v3_imagenet

        return moco_v3_imagenet(name, backbone=backbone)

    build.__doc__ = f"""MoCo v3, {title}, {epochs} epochs of ImageNet, as its CONFIG.md trains it.

    sts run {name} --data.root /data/imagenet

    Spatially smoothed with --smoothing.preserve-probability 0.5. Hardware: {hardware} (CONFIG.md).
    Time: {{time}}.
    Expect {known}, as CONFIG.md says of its own code.
    """


for _network in MOCO_V3:
    _moco_v3(_network)
in_small("moco-v3", "MoCo v3", MOCO_V3_SMALL, hours={"digits": "0.02"}, paper="MoCo v3")


def _mean_teacher() -> None:
    name = "mean-teacher-cifar10-4000"

    @named(name, paper="-", hardware="1 GPU")
    def build() -> "PipelineConfig":
        from sts_pipelines.catalog.configs import mean_teacher_cifar

        return mean_teacher_cifar(name)

    build.__doc__ = """Mean Teacher on CIFAR-10, 4,000 labels, a WRN-28-2, else as its authors' code has it.

    sts run mean-teacher-cifar10-4000 --data.root /data/cifar10

    Spatially smoothed with --smoothing.preserve-probability 0.5. Hardware: 1 GPU. Time:
    {time}.
    Expect more than the labels alone give.
    """


_mean_teacher()
