"""BYOL: the paper's rows on ImageNet, and the same family on small images."""

from dataclasses import replace
from typing import TYPE_CHECKING

from sts_pipelines.catalog.families import EIGHT_GPUS, TWO_CORES, imagenet_rows, in_small
from sts_pipelines.catalog.registry import named

if TYPE_CHECKING:
    from sts_pipelines.config.pipeline import ComparisonConfig, PipelineConfig

# (m, p): TMA .99 and STS p = .7 as in the STS repo; for SE see `note_on_se`.
IMAGENET = {"none": (0.0, 0.0), "se": (0.0, 0.999), "tma": (0.99, 0.0), "sts": (0.99, 0.7)}
# Runs of a few hundred steps need teachers that forget faster.
SMALL = {"none": (0.0, 0.0), "se": (0.0, 0.9), "tma": (0.9, 0.0), "sts": (0.9, 0.7)}


imagenet_rows(
    "byol",
    "BYOL",
    IMAGENET,
    hardware=f"{EIGHT_GPUS} (paper: 8 RTX 2080)",
    about="Time:\n    {time}.\n    Expect {expected}.",
)


def _long(epochs: int) -> None:
    name = f"byol-imagenet-{epochs}ep-sts"
    number = ("state-of-the-art", f"Ours (BYOL + STS) {epochs}", "top-1")

    @named(
        name,
        paper=f"state of the art: {epochs} epochs",
        hardware=EIGHT_GPUS,
        published=number,
    )
    def build() -> "PipelineConfig":
        from sts_pipelines.catalog.configs import byol_imagenet

        return byol_imagenet(name, epochs=epochs, m=0.99, p=0.7)

    build.__doc__ = f"""BYOL with STS, ResNet-50, {epochs} epochs of ImageNet.

    sts run {name} --data.root /data/imagenet

    Hardware: {EIGHT_GPUS}. Time:
    {{time}}.
    Expect {{expected}}.
    """


for _epochs in (300, 1000):
    _long(_epochs)


@named(
    "byol-imagenet-200ep-sts-lr0.1",
    paper="effect of STS: BYOL, lr as printed",
    hardware=EIGHT_GPUS,
    published=("effect-of-sts", "BYOL STS", "top-1"),
)
def byol_imagenet_lr() -> "PipelineConfig":
    """BYOL with STS at the learning rate that the paper prints, .1, where its code has .05.

    sts run byol-imagenet-200ep-sts-lr0.1 --data.root /data/imagenet

    Hardware: 8 GPUs. Time:
    {time}. Expect {published} % if the paper's text is right about its own run.
    """
    from sts_pipelines.catalog.configs import byol_imagenet

    base = byol_imagenet("byol-imagenet-200ep-sts-lr0.1", epochs=200, m=0.99, p=0.7, variant="paper")
    optimizer = replace(base.training.optimizer, warmup_start=1e-5)  # from 1e-6 as in the code: only the rate differs
    return replace(base, training=replace(base.training, optimizer=optimizer))


@named(
    "byol-imagenet-300ep-deepmind",
    paper="state of the art: BYOL row",
    hardware=EIGHT_GPUS,
    published=("state-of-the-art", "BYOL 300", "top-1"),
)
def byol_imagenet_deepmind() -> "PipelineConfig":
    """BYOL as its authors train it (LARS, batch 4096, their colours, bicubic crops, m = .99 to 1), 300 epochs.

    sts run byol-imagenet-300ep-deepmind --data.root /data/imagenet

    Hardware: 8 GPUs, 11 GB each, 16 micro-batches a step. Time:
    {time}.
    Expect {published} % with the student (BYOL paper). What differs from its authors': batch norm covers a
    micro-batch; the blur is Pillow's; bicubic crops are antialiased, evaluation is bilinear; weights start as timm's
    and torch's, the teacher as a copy of the student; the rest is in `sts_methods.recipes`.
    """
    from sts_pipelines.catalog.configs import byol_imagenet

    # DeepMind: tau .99 at 300 epochs
    return byol_imagenet("byol-imagenet-300ep-deepmind", epochs=300, m=0.99, p=0.0, variant="deepmind")


@named("byol-imagenet-drift", paper="smoothing figure", hardware=EIGHT_GPUS)
def byol_imagenet_drift() -> "ComparisonConfig":
    """How far the teacher moves from epoch to epoch, in weights and outputs, with none, TMA .999 and SE .999.

    sts run byol-imagenet-drift --data.root /data/imagenet

    The first 20 epochs of a training of 200, as in the figure. Hardware: 8 GPUs. Time:
    {time}. Expect curves:
    none stays high, TMA and SE lie far below and fall.
    """
    from sts_pipelines.catalog.configs import byol_imagenet

    return _drift(byol_imagenet("byol-imagenet-drift", epochs=200, m=0.999, p=0.0), 0.999, stop=20)


@named("byol-digits-drift", paper="smoothing figure, in small", hardware=TWO_CORES, hours="0.05")
def byol_digits_drift() -> "ComparisonConfig":
    """The smoothing figure on handwritten digits.

    sts run byol-digits-drift

    The first 7 epochs of a training of 70. Hardware: two CPU cores. Time: a few minutes. Expect the figure's order:
    over five seeds, the weights of none, SE and TMA moved by 1.3e-4, 7.1e-5 and 1.1e-5 an epoch, their outputs by 97,
    3.2 and 0.7, none most in every seed. In the last epoch alone, TMA moved less than none in all five seeds, SE in
    outputs; its weights moved more than none's in two of them, since a single epoch replaces a fifth of its layers.
    """
    from sts_pipelines.catalog.configs import byol_small

    # Not the .9 of other small runs: within an epoch's 22 steps such a teacher forgets all, and moves as its student.
    base = byol_small("byol-digits-drift", dataset="digits", m=0.99, p=0.0)
    return _drift(replace(base, training=replace(base.training, steps=None, epochs=70)), 0.99, stop=7)


def _drift(base: "PipelineConfig", strength: float, *, stop: int) -> "ComparisonConfig":
    """None, TMA(m) and SE(p) with m = p = `strength`, at constant momentum as in the figure.

    The first tenth of a training: at its end the learning rate falls to 0, and with it the drift of all teachers.
    """
    from sts_methods.recipes import self_supervised_teacher
    from sts_pipelines.config.pipeline import ComparisonConfig

    training = replace(base.training, track_drift=True, momentum_schedule="constant", stop_after_epochs=stop)
    cells = {"none": (0.0, 0.0), "tma": (strength, 0.0), "se": (0.0, strength)}
    variants = {name: self_supervised_teacher(m, p) for name, (m, p) in cells.items()}
    return ComparisonConfig(pipeline=replace(base, training=training), variants=variants)


in_small("byol", "BYOL", SMALL, hours={"digits": "0.02", "cifar10": "0.3"})


@named("byol-photos", paper="-", hardware="1 GPU")
def byol_photos() -> "PipelineConfig":
    """BYOL with STS on a folder of photographs of your own, from weights that somebody has trained on others.

    sts run byol-photos --data.root photos --initial.weights resnet50.a1_in1k --epochs 50

    Hardware: 1 GPU (--method.backbone resnet18 and --data.num-workers 2 suit a smaller machine). Time:
    {time}.
    Expect features of your photographs, in teacher.safetensors: without labels nothing is measured. The
    recipe is the paper's with fewer epochs, and has not been tuned for trained weights; without --initial.weights it
    starts from a seed's. --initial.weights takes names of timm, hf-hub:OWNER/NAME, run folders and published files.
    """
    from sts_methods import DataConfig
    from sts_pipelines.catalog.configs import ONE_GPU, byol_imagenet

    base = byol_imagenet("byol-photos", epochs=50, m=0.99, p=0.7)
    data = DataConfig(dataset="images", image_size=224, views="byol", num_workers=8)
    optimizer = replace(base.training.optimizer, warmup_epochs=2.0)
    training = replace(base.training, data=data, optimizer=optimizer, global_batch_size=64)
    evaluation = replace(base.evaluation, after_training=())
    return replace(base, training=training, evaluation=evaluation, cluster=ONE_GPU)
