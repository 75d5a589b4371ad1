"""Hours that nobody has measured, estimated by a model: what a step asks for, beside what GPUs and hosts can do.

A step takes as long as the longest of four things, behind which the others hide:

    arithmetic   what it multiplies, in images of 224 px that ResNet-50 is trained on, of which speeds are published
    launches     the operations that the host puts into the GPU's stream, as a null GPU counts them
    exchange     what GPUs send one another, counted likewise
    images       decoding, by the processes that load them

What the model leaves out, and how wrong it can be, stands in docs/running.md. Nothing here imports torch.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

RESNET50_FLOPS = 3 * 8.174e9
"""Of an image forward and, twice as many, backward, as torch's FlopCounterMode counts them (2 a multiplication)."""
LAUNCH_SECONDS = 10e-6
"""Host time of an operation: of a step on a null GPU 9 us (BYOL) and 11 us (MoCo; sts-methods, docs/speed.md)."""
IMAGES_PER_CORE = 539.0
"""Of 500x375, a second: decoded and cropped twice, the rest left to the GPU (one core; sts-methods, docs/speed.md)."""
LONG_HOURS = 100.0
"""From here on days are easier to read."""
SHORT = {"days": "d", "hours": "h", "minutes": "min"}
HOURS_IN = {"days": 24.0, "hours": 1.0, "minutes": 1 / 60}
FILE = Path(__file__).with_name("hours.json")
"""The estimate of each pipeline that needs GPUS: `ci/bench hours` writes it, a test compares."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU, with eight of them in a machine."""

    name: str
    full: float
    """ResNet-50 training images per second in float32, as torch means it: in TF32 where the GPU has it."""
    half: float
    """In mixed precision."""
    bandwidth: float
    """Bytes a second that each sends while all exchange. Assumed."""
    latency: float
    """Seconds of a collective that sends next to nothing. Assumed."""


# NVIDIA/DeepLearningExamples, PyTorch/Classification/ConvNets/resnet50v1.5/README.md at 291f0d0, "Training performance:
# NVIDIA DGX A100 (8x A100 80GB)", pytorch-21.03: one GPU, TF32 and mixed precision (8 have 7.72 and 6.72 times these).
# Exchange is assumed: half of NVLink's 300 GB/s in each direction.
A100 = Gpu(name="A100", full=938.0, half=2470.0, bandwidth=150e9, latency=20e-6)
# Lambda, lambdalabs.com/blog/2080-ti-deep-learning-benchmarks, 4 March 2019, TensorFlow 1.12: one GPU, FP32, and FP16
# 59 % faster (8 have 5.1 times the former, over all networks). Exchange is assumed: a third of PCIe 3.0's 15.75 GB/s,
# since these GPUs do not reach each other's memory; 8 RTX 4090 take 42 us to add up 8 bytes (NVIDIA/nccl#1530).
RTX_2080_TI = Gpu(name="RTX 2080 Ti", full=294.0, half=294.0 * 1.59, bandwidth=5e9, latency=50e-6)
GPUS = (A100, RTX_2080_TI)


@dataclass(frozen=True, kw_only=True)
class Counted:
    """What a step of a method asks of a null GPU as rank 0 of 8, on the network of its recipe, in float32.

    `tests/null_gpu/test_budget.py` holds these numbers.
    """

    backbones: tuple[str, ...]
    """The networks that ask for so much."""
    data: int
    """Operations that augment a batch."""
    gradients: int
    """Operations of the forward and backward passes."""
    update: int
    """Operations of the check that all is finite, the student's step and the teacher's."""
    casts: int
    """Further operations in float16."""
    collectives: int
    megabytes: float
    """What the collectives send."""


RESNET50, VIT, WIDE = ("resnet50",), ("vit_small_patch16_224",), ("wrn_28_2", "wrn_28_8")
COUNTED: Mapping[str, Counted] = {
    "byol": Counted(
        backbones=RESNET50, data=161, gradients=2132, update=7, casts=198, collectives=170, megabytes=149.2
    ),
    "moco": Counted(backbones=RESNET50, data=156, gradients=972, update=7, casts=183, collectives=22, megabytes=150.6),
    "moco_v3": Counted(
        backbones=RESNET50, data=161, gradients=2162, update=80, casts=188, collectives=174, megabytes=149.8
    ),
    "dino": Counted(backbones=VIT, data=335, gradients=1636, update=8, casts=395, collectives=6, megabytes=178.0),
    "fixmatch": Counted(backbones=WIDE, data=229, gradients=562, update=12, casts=72, collectives=52, megabytes=6.1),
    "mean_teacher": Counted(backbones=WIDE, data=28, gradients=796, update=9, casts=112, collectives=77, megabytes=6.2),
}


@dataclass(frozen=True, kw_only=True)
class Step:
    """What is asked of each GPU, of its host and of each core that loads images."""

    images: float
    """Training images of ResNet-50 that are as much arithmetic."""
    half: bool = False
    """Whether in mixed precision."""
    operations: int = 0
    """Launches; 0 where nobody has counted them."""
    collectives: int = 0
    sent_bytes: float = 0.0
    decoded: float = 0.0
    """Images that a core decodes."""

    def bound(self, gpu: Gpu) -> str:
        """The longest of the four."""
        seconds = self.seconds(gpu)
        return max(seconds, key=lambda name: seconds[name])

    def seconds(self, gpu: Gpu) -> dict[str, float]:
        """How long each of the four would take alone."""
        return {
            "arithmetic": self.images / (gpu.half if self.half else gpu.full),
            "launches": self.operations * LAUNCH_SECONDS,
            "exchange": self.collectives * gpu.latency + 2 * self.sent_bytes / gpu.bandwidth,  # sums go twice
            "images": self.decoded / IMAGES_PER_CORE,
        }


@dataclass(frozen=True, kw_only=True)
class Work:
    """All trainings of a pipeline and their evaluation."""

    step: Step
    num_steps: float
    evaluation: Step
    """All forward passes of it, as one step."""
    runs: int = 1

    def hours(self, gpu: Gpu) -> float:
        """Every step as long as the longest of its parts."""
        training = self.num_steps * max(self.step.seconds(gpu).values())
        return self.runs * (training + max(self.evaluation.seconds(gpu).values())) / 3600.0


@dataclass(frozen=True, kw_only=True)
class Hours:
    """The hours of a pipeline on each of GPUS."""

    gpus: int
    """So many of them."""
    hours: Sequence[float]
    bound: Sequence[str]
    """The part that a training step is as long as, on each of GPUS."""
    per_images: int | None = None
    """They are those for so many images where nobody knows how many there are."""

    def __str__(self) -> str:
        """`~28 / ~88 h est.`; days where it is long, minutes where it is short."""
        numbers, unit = self._in_unit()
        per = "" if self.per_images is None else f"/{self.per_images:,}"
        return f"{' / '.join(f'~{number}' for number in numbers)} {SHORT[unit]}{per} est."

    def in_words(self) -> str:
        """`about 28 hours on 8 A100 or 88 on 8 RTX 2080 Ti`."""
        (first, second), unit = self._in_unit()
        count = f"{self.gpus} " if self.gpus > 1 else "one "
        per = "" if self.per_images is None else f" for every {self.per_images:,} images"
        return f"about {first} {unit} on {count}{A100.name} or {second} on {count}{RTX_2080_TI.name}{per}"

    def _in_unit(self) -> tuple[list[str], str]:
        """Two digits each, and what they count."""
        unit = "days" if self.hours[0] >= LONG_HOURS else "hours" if self.hours[0] >= 1 else "minutes"
        return [f"{float(f'{number / HOURS_IN[unit]:.2g}'):,g}" for number in self.hours], unit


def estimates() -> dict[str, dict[str, Hours]]:
    """By pipeline and precision, "own" being that of its recipe."""
    found = json.loads(FILE.read_text())
    return {name: {kind: Hours(**values) for kind, values in kinds.items()} for name, kinds in found.items()}
