"""Hours that nobody has measured, estimated: the work of a pipeline beside published speeds of ResNet-50.

Work is counted in images of 224 px that ResNet-50 takes forward and backward, by their multiplications alone. What the
model leaves out, and how wrong it can be, stands in docs/running.md. Nothing here imports torch.
"""

from dataclasses import dataclass

RESNET50_FLOPS = 3 * 8.174e9
"""Of an image forward and, twice as many, backward, as torch's FlopCounterMode counts them (2 a multiplication)."""
BYOL_200_EPOCHS = 748.9
"""Million images' worth of work of one training with its evaluation: `diagnostics.work` counts it, a test compares."""
LONG_HOURS = 100.0
"""From here on days are easier to read."""
SHORT = {"days": "d", "hours": "h", "minutes": "min"}
HOURS_IN = {"days": 24.0, "hours": 1.0, "minutes": 1 / 60}


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU with its ResNet-50 training images per second."""

    name: str
    full: float
    """In float32, as torch means it: convolutions in TF32 where the GPU has it."""
    half: float
    """In mixed precision."""


# NVIDIA/DeepLearningExamples, PyTorch/Classification/ConvNets/resnet50v1.5/README.md at 291f0d0, "Training performance:
# NVIDIA DGX A100 (8x A100 80GB)", pytorch-21.03: one GPU, TF32 and mixed precision (8 have 7.72 and 6.72 times these).
A100 = Gpu(name="A100", full=938.0, half=2470.0)
# Lambda, lambdalabs.com/blog/2080-ti-deep-learning-benchmarks, 4 March 2019, TensorFlow 1.12: one GPU, FP32, and FP16
# 59 % faster (8 have 5.1 times the former, over all networks).
RTX_2080_TI = Gpu(name="RTX 2080 Ti", full=294.0, half=294.0 * 1.59)
GPUS = (A100, RTX_2080_TI)


def hours_on(gpu: Gpu, millions: float, *, gpus: int, half: bool = False) -> float:
    """Hours that `gpus` of them take for so many million images' worth of work."""
    return millions * 1e6 / ((gpu.half if half else gpu.full) * gpus) / 3600.0


def estimated(millions: float, *, gpus: int, half: bool = False) -> str:
    """`~28 / ~91 h est.`, on A100 and on RTX 2080 Ti; days where it is long, minutes where it is short."""
    numbers, unit = _in_unit(millions, gpus=gpus, half=half)
    return " / ".join(f"~{number}" for number in numbers) + f" {SHORT[unit]} est."


def estimate_in_words(millions: float, *, gpus: int, half: bool = False) -> str:
    """`about 28 hours on 8 A100 or 91 on 8 RTX 2080 Ti`."""
    (first, second), unit = _in_unit(millions, gpus=gpus, half=half)
    return f"about {first} {unit} on {gpus} {A100.name} or {second} on {gpus} {RTX_2080_TI.name}"


def _in_unit(millions: float, *, gpus: int, half: bool) -> tuple[list[str], str]:
    """Two digits each, and what they count."""
    hours = [hours_on(gpu, millions, gpus=gpus, half=half) for gpu in GPUS]
    unit = "days" if hours[0] >= LONG_HOURS else "hours" if hours[0] >= 1 else "minutes"
    return [f"{float(f'{number / HOURS_IN[unit]:.2g}'):,g}" for number in hours], unit
