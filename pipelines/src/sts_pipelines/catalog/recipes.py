"""The recipes behind the names, each with the source of every number; the names are in the files beside this one.

Sources: "paper" is Spatial Ensemble; "STS repo" its released code; "MoCo v2" facebookresearch/moco main_moco.py with
--mlp --moco-t 0.2 --aug-plus --cos; "google" google-research/fixmatch; "DeepMind" deepmind-research/byol. Where they
disagree the comment says whom we follow.
"""

from dataclasses import replace
from typing import Any, Literal

from sts_core import SmoothingConfig, spatial_temporal_smoothing
from sts_eval import FeatureConfig, LinearProbeConfig, NeighboursConfig, byol_protocol, fast_protocol, moco_protocol
from sts_methods import ByolConfig, FixMatchConfig, MoCoConfig
from sts_methods.data import DataConfig
from sts_methods.optim import OptimizerConfig
from sts_methods.training import TrainingConfig
from sts_pipelines.pipeline import ClusterConfig, EvaluationConfig, PipelineConfig

EIGHT_GPUS = ClusterConfig(num_workers=8, cpus_per_worker=8.0)  # paper: 8 RTX 2080
ONE_CPU = ClusterConfig(num_workers=1, use_gpu=False, cpus_per_worker=1.0)
ONE_GPU = ClusterConfig(num_workers=1, cpus_per_worker=8.0)
TWO_CPUS = ClusterConfig(num_workers=2, use_gpu=False, cpus_per_worker=1.0)
# timm's smallest ResNet: 0.4 M weights in four stages. Its ImageNet stem makes minutes of hours on 32 pixels, and on
# digits leaves room to learn: with a CIFAR stem a linear probe of the untrained network is right for 93 % of them.
SMALL_BACKBONE = "test_resnet"

Dataset = Literal["digits", "cifar10"]


def byol_teacher(m: float, p: float) -> SmoothingConfig:
    """BYOL's and MoCo's teachers run in train mode and keep the batch statistics that they see themselves."""
    return spatial_temporal_smoothing(m, p, buffers="keep")


def fixmatch_teacher(m: float, p: float) -> SmoothingConfig:
    """FixMatch's teacher takes the student's batch statistics (google; LeeDoYup: "much worse" without)."""
    return spatial_temporal_smoothing(m, p, buffers="copy")


def byol_imagenet(name: str, *, epochs: int, m: float, p: float) -> PipelineConfig:
    """BYOL as in the STS repo, which is what the paper's numbers were made with: SGD, batch 256."""
    training = TrainingConfig(
        method=ByolConfig(backbone="resnet50"),  # heads 2048-4096-256 and 256-4096-256 with bias: STS repo
        smoothing=byol_teacher(m, p),
        momentum_schedule="cosine",  # STS repo: m rises to 1 along a cosine; the paper does not mention it
        data=DataConfig(dataset="imagefolder", image_size=224, recipe="byol", num_workers=8),
        optimizer=OptimizerConfig(
            lr=0.05,  # STS repo, sts_exp.py; the paper says .1, see byol-imagenet-200ep-sts-lr0.1
            momentum=0.9,  # paper
            weight_decay=1e-4,  # paper; on all parameters, batch norm and biases included: STS repo
            warmup_epochs=10,  # paper
            warmup_start=2e-5,  # STS repo: from 1e-6; the paper says a factor of .001
        ),
        global_batch_size=256,  # paper
        epochs=epochs,
        checkpoint_every_minutes=15.0,
        checkpoint_every_steps=5000,
    )
    return PipelineConfig(name=name, training=training, cluster=EIGHT_GPUS, evaluation=_imagenet(byol_protocol()))


def byol_deepmind(name: str, *, epochs: int, m: float, p: float) -> PipelineConfig:
    """BYOL as its authors train it: LARS, batch 4096, bicubic crops, a plain linear probe with Nesterov momentum.

    Two things differ. The batch is made of micro-batches, so batch norm covers 256 images where the original covers all
    4096. The blur is Pillow's, three boxes of the drawn deviation, where the original is a Gaussian of 23 taps.
    """
    base = byol_imagenet(name, epochs=epochs, m=m, p=p)
    training = replace(
        base.training,
        method=ByolConfig(backbone="resnet50", output_bias=False),  # DeepMind, utils/networks.py
        data=replace(base.training.data, interpolation="bicubic"),  # DeepMind
        optimizer=OptimizerConfig(
            name="lars",
            lr={100: 0.45, 300: 0.3, 1000: 0.2}[epochs],  # DeepMind, configs/byol.py
            momentum=0.9,
            weight_decay=1.5e-6 if epochs == 1000 else 1e-6,  # DeepMind, configs/byol.py
            exclude_norm_and_bias=True,
            warmup_epochs=10,
        ),
        global_batch_size=4096,
        accumulation=16,  # 32 images per worker and micro-batch, as many as in the paper's recipe
    )
    linear = byol_protocol(batch_norm=False, nesterov=True)  # DeepMind, configs/eval.py
    return replace(base, training=training, evaluation=_imagenet(linear))


def moco_imagenet(name: str, *, epochs: int, m: float, p: float) -> PipelineConfig:
    """MoCo v2 as its authors train it, which the paper follows."""
    training = TrainingConfig(
        method=MoCoConfig(backbone="resnet50", queue_size=65_536, temperature=0.2, bn_groups=8),  # MoCo v2
        smoothing=byol_teacher(m, p),
        momentum_schedule="constant",  # MoCo v2
        # MoCo's own augmentation (crops from .2, jitter .4): REFERENCE says the paper's "same as SimCLR" is loose.
        data=DataConfig(dataset="imagefolder", image_size=224, recipe="moco", num_workers=8),
        optimizer=OptimizerConfig(
            lr=0.03,  # MoCo v2 and paper
            scale_lr=False,  # MoCo v2 does not scale it
            momentum=0.9,
            weight_decay=1e-4,  # on all parameters: MoCo v2
            by_epoch=True,  # MoCo v2: the cosine moves once per epoch
        ),
        global_batch_size=256,
        epochs=epochs,
        checkpoint_every_minutes=15.0,
        checkpoint_every_steps=5000,
    )
    return PipelineConfig(name=name, training=training, cluster=EIGHT_GPUS, evaluation=_imagenet(moco_protocol()))


def fixmatch_cifar(
    name: str, *, dataset: Literal["cifar10", "cifar100"], labels: int, m: float, p: float
) -> PipelineConfig:
    """FixMatch with RandAugment: the student labels its own weak views, the teacher is evaluated."""
    hundred = dataset == "cifar100"
    training = TrainingConfig(
        method=FixMatchConfig(
            backbone="wrn_28_8" if hundred else "wrn_28_2",  # paper; google#25: width 8 for CIFAR-100
            num_classes=100 if hundred else 10,
        ),
        smoothing=fixmatch_teacher(m, p),
        data=DataConfig(dataset=dataset, image_size=32, recipe="fixmatch", num_labels=labels, unlabelled_ratio=7),
        optimizer=OptimizerConfig(
            lr=0.03,  # google
            scale_lr=False,
            momentum=0.9,
            nesterov=True,  # google
            weight_decay=1e-3 if hundred else 5e-4,  # google, paper
            exclude_norm_and_bias=True,  # google: kernels only
            schedule="cosine_7_16",  # google; the paper says cosine
        ),
        global_batch_size=64,  # google, paper; and 7 x 64 unlabelled
        steps=2**20,  # google, paper
        checkpoint_every_steps=1024,  # google: 65,536 labelled images between checkpoints
        keep_checkpoints=20,  # google reports the median of the last 20
    )
    cluster = replace(EIGHT_GPUS, num_workers=4) if hundred else ONE_GPU
    return PipelineConfig(
        name=name,
        training=training,
        cluster=cluster,
        evaluation=EvaluationConfig(after_training=("few-labels",)),
    )


def byol_small(name: str, *, dataset: Dataset, m: float, p: float) -> PipelineConfig:
    """BYOL for a laptop.

    Chosen by a pilot on seed 0: on digits a high learning rate is where smoothing matters, at a lower one no smoothing
    does as well as any. Momenta are constant, since SE has none that could rise, and shorter than ImageNet's, since a
    teacher has to forget within a training of some hundred steps.
    """
    digits = dataset == "digits"
    training = TrainingConfig(
        method=ByolConfig(backbone=SMALL_BACKBONE, hidden_dim=256, projection_dim=64),
        smoothing=byol_teacher(m, p),
        data=_small_data(dataset, "byol"),
        optimizer=OptimizerConfig(lr=1.2 if digits else 0.4, warmup_epochs=1.0),
        global_batch_size=64 if digits else 128,
        steps=_small_steps(dataset),
        **_SMALL,
    )
    return PipelineConfig(name=name, training=training, cluster=TWO_CPUS, evaluation=_small_evaluation())


def moco_small(name: str, *, dataset: Dataset, m: float, p: float) -> PipelineConfig:
    """MoCo for a laptop: a queue of eight batches, a teacher that remembers four times as long, two groups of norms."""
    batch = 64 if dataset == "digits" else 128
    training = TrainingConfig(
        method=MoCoConfig(backbone=SMALL_BACKBONE, dim=64, queue_size=8 * batch, bn_groups=2),
        smoothing=byol_teacher(m, p),
        data=_small_data(dataset, "moco"),
        optimizer=OptimizerConfig(lr=0.12),
        global_batch_size=batch,
        steps=_small_steps(dataset),
        **_SMALL,
    )
    return PipelineConfig(name=name, training=training, cluster=TWO_CPUS, evaluation=_small_evaluation())


def fixmatch_small(name: str, *, dataset: Dataset, labels: int, m: float, p: float) -> PipelineConfig:
    """FixMatch for a laptop: batches of 16 labelled and 64 unlabelled images, and a lower bar for pseudo-labels."""
    training = TrainingConfig(
        method=FixMatchConfig(backbone=SMALL_BACKBONE, stem="imagenet", num_classes=10, threshold=0.9),
        smoothing=fixmatch_teacher(m, p),
        data=replace(_small_data(dataset, "fixmatch"), num_labels=labels, unlabelled_ratio=4),
        optimizer=OptimizerConfig(
            lr=0.03,
            scale_lr=False,
            nesterov=True,
            weight_decay=5e-4,
            exclude_norm_and_bias=True,
            schedule="cosine_7_16",
        ),
        global_batch_size=16,
        steps=250 if dataset == "digits" else _small_steps(dataset),
        **_SMALL | {"keep_checkpoints": 20},  # google reports the median of the last 20
    )
    evaluation = EvaluationConfig(after_training=("few-labels",))
    return PipelineConfig(name=name, training=training, cluster=TWO_CPUS, evaluation=evaluation)


_SMALL: dict[str, Any] = {
    "log_every_steps": 5,
    "checkpoint_every_steps": 50,
    "verify_ranks_every_steps": 50,
    "keep_checkpoints": 3,
}


def _small_data(dataset: Dataset, recipe: Literal["byol", "moco", "fixmatch"]) -> DataConfig:
    return DataConfig(dataset=dataset, image_size=12 if dataset == "digits" else 32, recipe=recipe)


def _small_steps(dataset: Dataset) -> int:
    return 154 if dataset == "digits" else 1500


def _imagenet(linear: LinearProbeConfig) -> EvaluationConfig:
    return EvaluationConfig(linear=linear, features=FeatureConfig(num_workers=8, channels_last=True))


def _small_evaluation() -> EvaluationConfig:
    return EvaluationConfig(linear=fast_protocol(), knn=NeighboursConfig(ks=(20,), temperatures=(0.07,)))
