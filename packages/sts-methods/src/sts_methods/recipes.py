"""The methods as their authors and the paper train them, each number with its source.

Sources: "paper" is Spatial Ensemble; "STS repo" its released code; "MoCo v2" facebookresearch/moco main_moco.py with
--mlp --moco-t 0.2 --aug-plus --cos; "google" google-research/fixmatch; "DeepMind" deepmind-research/byol; flags and
"README" in the recipe of DINO facebookresearch/dino; flags and "CONFIG" in that of MoCo v3 facebookresearch/moco-v3
(main_moco.py, CONFIG.md); Mean Teacher's numbers CuriousAI/mean-teacher, cifar10_test.py of pytorch/experiments. Where
they disagree the comment says whom we follow. `data.root` is still to be set: replace(recipe, data=replace(recipe.data,
root=...)). Everything else may be replaced likewise.
"""

from dataclasses import replace
from typing import Literal

from sts_core import ConfigError, SmoothingConfig, spatial_temporal_smoothing
from sts_methods.data.config import DataConfig
from sts_methods.methods.byol import ByolConfig
from sts_methods.methods.dino import DinoConfig
from sts_methods.methods.fixmatch import FixMatchConfig
from sts_methods.methods.mean_teacher import MeanTeacherConfig
from sts_methods.methods.moco import MoCoConfig
from sts_methods.methods.moco_v3 import MoCoV3Config
from sts_methods.training.config import TrainingConfig
from sts_methods.training.optimizers import OptimizerConfig

__all__ = [
    "byol_imagenet", "dino_imagenet", "fixmatch_cifar", "fixmatch_teacher", "mean_teacher_cifar", "moco_imagenet",
    "moco_v3_imagenet", "self_supervised_teacher",
]  # fmt: skip

_IMAGENET_IMAGES = 1_281_167
ByolVariant = Literal["code", "paper", "deepmind"]
# DeepMind, configs/byol.py, by epochs
DEEPMIND_RATES = {40: 0.45, 100: 0.45, 300: 0.3, 1000: 0.2}
DEEPMIND_MOMENTA = {40: 0.97, 100: 0.99, 300: 0.99, 1000: 0.996}


def self_supervised_teacher(m: float, p: float) -> SmoothingConfig:
    """BYOL's and MoCo's teachers run in train mode and keep the batch statistics that they see themselves."""
    return spatial_temporal_smoothing(m, p, buffers="keep")


def fixmatch_teacher(m: float, p: float) -> SmoothingConfig:
    """FixMatch's teacher takes the student's batch statistics (google; LeeDoYup: "much worse" without)."""
    return spatial_temporal_smoothing(m, p, buffers="copy")


def byol_imagenet(
    variant: ByolVariant = "code", *, epochs: int | None = None, m: float | None = None, p: float | None = None
) -> TrainingConfig:
    """BYOL on ImageNet: as in the STS repo ("code"), as the paper prints it, or as DeepMind trains it.

    Without values of their own, these are 200 epochs with m from .99 and p = .7, and DeepMind's 1000 with the m that
    belongs to the epochs and p = 0.
    """
    if variant == "deepmind":
        return _byol_deepmind(epochs=1000 if epochs is None else epochs, m=m, p=0.0 if p is None else p)
    if variant not in ("code", "paper"):
        raise ConfigError(f"variant must be code, paper or deepmind, got {variant!r}")
    lr = 0.05 if variant == "code" else 0.1  # STS repo, sts_exp.py; paper, section 4.1
    return TrainingConfig(
        method=ByolConfig(backbone="resnet50"),  # heads 2048-4096-256 and 256-4096-256 with bias: STS repo
        smoothing=self_supervised_teacher(0.99 if m is None else m, 0.7 if p is None else p),  # STS repo
        momentum_schedule="cosine",  # STS repo: m rises to 1 along a cosine; the paper does not mention it
        data=DataConfig(dataset="imagefolder", image_size=224, views="byol", num_workers=8),
        optimizer=OptimizerConfig(
            lr=lr,
            momentum=0.9,  # paper
            weight_decay=1e-4,  # paper; on all parameters, batch norm and biases included: STS repo
            warmup_epochs=10,  # paper
            warmup_start={"code": 2e-5, "paper": 1e-3}[variant],  # from 1e-6: STS repo; a factor of .001: paper
        ),
        global_batch_size=256,  # paper
        epochs=200 if epochs is None else epochs,  # paper
        checkpoint_every_minutes=15.0,
        checkpoint_every_steps=5000,
    )


def _byol_deepmind(*, epochs: int, m: float | None, p: float) -> TrainingConfig:
    """LARS, batch 4096, bicubic crops, colours of DeepMind's own, blocks that start as the identity.

    What differs from DeepMind's. The batch is made of micro-batches, so batch norm covers 256 images where the original
    covers all 4096. The blur is Pillow's, three boxes of the drawn deviation that repeat the border, where the original
    is a Gaussian of 23 taps that takes black beyond it. Its bicubic resizing, in evaluation too, has no antialias; ours
    has, and evaluation is bilinear. It cuts off what of a crop lies outside of its image, where ours draws again. Our
    pixels are whole levels after crop, jitter and blur, the original's are not. Its weights start as haiku's (normal
    with variance 1/fan-in, cut at two deviations), ours as timm's (convolutions) and torch's (linear layers); its
    convolutions are padded as TensorFlow's; its target network starts from weights of its own, ours from the student's.
    """
    if epochs not in DEEPMIND_RATES:
        known = ", ".join(map(str, DEEPMIND_RATES))
        raise ConfigError(f"DeepMind trains BYOL for {known} epochs, got {epochs}")
    base = byol_imagenet("code", epochs=epochs, m=DEEPMIND_MOMENTA[epochs] if m is None else m, p=p)
    return replace(
        base,
        method=ByolConfig(backbone="resnet50", output_bias=False, zero_init_last=True),  # DeepMind, utils/networks.py
        data=replace(base.data, views="byol_deepmind", interpolation="bicubic"),  # DeepMind, utils/augmentations.py
        optimizer=OptimizerConfig(
            name="lars",
            lr=DEEPMIND_RATES[epochs],
            momentum=0.9,
            weight_decay=1.5e-6 if epochs == 1000 else 1e-6,  # DeepMind, configs/byol.py
            exclude_norm_and_bias=True,
            warmup_epochs=10,
        ),
        global_batch_size=4096,
        accumulation=16,  # 32 images per worker and micro-batch, as many as in the paper's recipe
    )


def moco_imagenet(*, epochs: int = 200, m: float = 0.999, p: float = 0.0) -> TrainingConfig:
    """MoCo v2 on ImageNet as its authors train it; with p = .5 as the paper does."""
    return TrainingConfig(
        method=MoCoConfig(backbone="resnet50", queue_size=65_536, temperature=0.2, bn_groups=8),  # MoCo v2
        smoothing=self_supervised_teacher(m, p),
        momentum_schedule="constant",  # MoCo v2
        # MoCo's own augmentation (crops from .2, jitter .4): the paper's "same as SimCLR" is loose.
        data=DataConfig(dataset="imagefolder", image_size=224, views="moco", num_workers=8),
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


def moco_v3_imagenet(
    backbone: Literal["resnet50", "vit_small", "vit_base"] = "resnet50",
    *,
    epochs: int | None = None,
    m: float | None = None,
    p: float = 0.0,
) -> TrainingConfig:
    """MoCo v3 on ImageNet as its authors train ResNet-50 (100 epochs), ViT-S/16 on one machine, and ViT-B/16 (300).

    CONFIG has ResNet-50 on 16 GPUs of 32 GB, ViT-S on 8 and ViT-B on 64. With `accumulation` the negatives are those of
    a micro-batch alone. What differs from there is in `MoCoV3Config`.
    """
    if backbone not in ("resnet50", "vit_small", "vit_base"):
        raise ConfigError(f"backbone must be resnet50, vit_small or vit_base, got {backbone!r}: CONFIG.md has these")
    transformer = backbone != "resnet50"
    epochs = (300 if transformer else 100) if epochs is None else epochs
    method = MoCoV3Config(
        backbone=f"{backbone}_patch16_224" if transformer else backbone,
        zero_init_last=not transformer,
        freeze_patches=transformer,  # CONFIG: --stop-grad-conv1
        temperature=0.2 if transformer else 1.0,  # CONFIG: --moco-t=.2; --moco-t
    )
    long = not transformer and epochs >= 1000
    optimizer = OptimizerConfig(
        name="adamw" if transformer else "lars",
        lr=1.5e-4 if transformer else 0.6 if epochs < 300 else 0.3,  # CONFIG; per 256 images
        momentum=0.9,
        weight_decay=0.1 if transformer else 1.5e-6 if long else 1e-6,  # CONFIG; --wd
        exclude_norm_and_bias=not transformer,  # moco/optimizer.py: what has one dimension; AdamW decays all
        warmup_epochs=40 if transformer else 10,  # CONFIG; --warmup-epochs
    )
    return TrainingConfig(
        method=method,
        smoothing=self_supervised_teacher((0.996 if long else 0.99) if m is None else m, p),  # CONFIG; --moco-m
        momentum_schedule="cosine",  # CONFIG: --moco-m-cos
        data=DataConfig(
            dataset="imagefolder",
            image_size=224,
            views="byol",  # the same augmentation
            crop_scale_min=None if transformer else 0.2,  # CONFIG: --crop-min=.2
            num_workers=8,
        ),
        optimizer=optimizer,
        global_batch_size=1024 if backbone == "vit_small" else 4096,  # CONFIG; --batch-size
        epochs=epochs,
        precision="float16",  # torch.cuda.amp
        checkpoint_every_minutes=15.0,
        checkpoint_every_steps=5000,
    )


def fixmatch_cifar(
    dataset: Literal["cifar10", "cifar100"] = "cifar10", *, labels: int = 250, m: float = 0.999, p: float = 0.0
) -> TrainingConfig:
    """FixMatch with RandAugment as google trains it: the student labels its own weak views. The paper has p = .5."""
    hundred = dataset == "cifar100"
    return TrainingConfig(
        method=FixMatchConfig(
            backbone="wrn_28_8" if hundred else "wrn_28_2",  # paper; google#25: width 8 for CIFAR-100
            num_classes=100 if hundred else 10,
        ),
        smoothing=fixmatch_teacher(m, p),
        data=DataConfig(dataset=dataset, image_size=32, views="fixmatch", num_labels=labels, unlabelled_ratio=7),
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


def dino_imagenet(
    backbone: Literal["vit_small", "resnet50"] = "vit_small", *, epochs: int = 100, m: float = 0.996, p: float = 0.0
) -> TrainingConfig:
    """DINO on ImageNet as its README trains ViT-S/16 ("vanilla") and ResNet-50, on 8 GPUs of 64 images each.

    What differs from there is in `DinoConfig`.
    """
    batch, transformer = 512, backbone == "vit_small"
    if backbone not in ("vit_small", "resnet50"):
        raise ConfigError(f"backbone must be vit_small or resnet50, got {backbone!r}: DINO's README trains these")
    optimizer = OptimizerConfig(
        name="adamw" if transformer else "sgd",  # README
        lr=5e-4 if transformer else 0.03,  # --lr, README; per 256 images
        momentum=0.9,  # beta 1 of AdamW; DINO's SGD
        weight_decay=0.04 if transformer else 1e-4,  # --weight_decay, README
        final_weight_decay=0.4 if transformer else 1e-4,  # --weight_decay_end, README
        exclude_norm_and_bias=True,  # utils.get_params_groups
        warmup_epochs=10,  # --warmup_epochs
        final_lr=1e-6,  # --min_lr
        clip_each_gradient_norm=3.0,  # --clip_grad
    )
    return TrainingConfig(
        method=DinoConfig(
            backbone="vit_small_patch16_224" if transformer else "resnet50",
            drop_path=0.1 if transformer else 0.0,  # --drop_path_rate, which ResNets do not have
            freeze_prototypes_steps=_IMAGENET_IMAGES // batch,  # --freeze_last_layer: one epoch
        ),
        smoothing=self_supervised_teacher(m, p),  # --momentum_teacher
        momentum_schedule="cosine",  # to 1
        data=DataConfig(
            dataset="imagefolder",
            image_size=224,
            views="dino",
            crop_scale_min=None if transformer else 0.14,  # README: --global_crops_scale 0.14 1
            local_crop_scale_max=None if transformer else 0.14,  # README: --local_crops_scale 0.05 0.14
            num_workers=8,
        ),
        optimizer=optimizer,
        global_batch_size=batch,  # 8 x --batch_size_per_gpu
        epochs=epochs,  # --epochs
        precision="float16",  # --use_fp16
        checkpoint_every_minutes=15.0,
        checkpoint_every_steps=5000,
    )


def mean_teacher_cifar(
    dataset: Literal["cifar10", "cifar100"] = "cifar10", *, labels: int = 4000, m: float = 0.97, p: float = 0.0
) -> TrainingConfig:
    """Mean Teacher for CIFAR-10 with 4,000 or 1,000 labels as its authors' PyTorch code trains it, on a Wide ResNet.

    What differs from there is in `MeanTeacherConfig`. CIFAR-100 with the same numbers is ours.
    """
    epoch = (50_000 - labels) // 97  # steps in which its sampler visits the images without a label, 97 a batch
    return TrainingConfig(
        method=MeanTeacherConfig(num_classes=100 if dataset == "cifar100" else 10, ramp_up_steps=5 * epoch),
        smoothing=self_supervised_teacher(m, p),  # ema_decay; the teacher runs in train mode
        momentum_schedule="warmup",  # main.py: min(1 - 1/(step + 1), ema_decay)
        data=DataConfig(dataset=dataset, image_size=32, views="mean_teacher", num_labels=labels, unlabelled_ratio=3),
        optimizer=OptimizerConfig(
            lr=0.05,  # base_lr
            scale_lr=False,  # base_batch_size is 128 in all, as here
            momentum=0.9,
            nesterov=True,
            weight_decay=2e-4,  # on all parameters
        ),
        global_batch_size=32,  # labelled; base_labeled_batch_size is 31
        steps=210 * epoch,  # lr_rampdown_epochs
        stop_after_epochs=round(180 * epoch / (50_000 // 96)),  # epochs, in our passes over 50,000 images, 96 a batch
        checkpoint_every_steps=1000,
    )
