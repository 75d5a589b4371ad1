"""Features of a frozen backbone for a whole dataset: extracted once, kept in a file that survives being killed."""

import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sts_core import ConfigError, Precision, StateError, distributed
from sts_eval.features.cache import FeatureStore, dataset_fingerprint, open_store
from sts_eval.features.samples import class_names, load_batches
from sts_eval.features.unchanged import unchanged


@dataclass(frozen=True, kw_only=True)
class FeatureConfig:
    """How images are fed to the backbone; the values depend on `precision` only."""

    batch_size: int = 256
    """Images per forward pass and per block of the cache."""
    num_workers: int = 0
    """Loader processes that decode while the network computes; 0 decodes in between."""
    precision: Precision = "float32"
    """Type of the forward pass under autocast; features are float32 in any case."""
    channels_last: bool = False
    """Memory format of the images, which convolutions carry on; faster on most devices."""

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.num_workers < 0:
            got = f"{self.batch_size} and {self.num_workers}"
            raise ConfigError(
                f"batch_size must be positive and num_workers at least 0, got {got}: raise them",
                fields=("batch_size", "num_workers"),
            )
        if self.precision not in ("float32", "bfloat16", "float16"):
            raise ConfigError(
                f"precision must be float32, bfloat16 or float16, got {self.precision!r}", fields=("precision",)
            )


@dataclass(frozen=True)
class Features:
    """Features [N, D], taken as float32, and labels [N] of one split, possibly memory-mapped."""

    values: Tensor
    labels: Tensor
    classes: tuple[str, ...] | None = None
    """Names of the classes in order of their labels, where the dataset knows them."""
    seconds_loading: float = 0.0
    """Time spent waiting for images; 0 for features that came from the cache."""
    seconds_forward: float = 0.0
    """Time spent in the network and in storing its output."""

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or self.labels.shape != self.values.shape[:1] or self.values.numel() == 0:
            shapes = f"{tuple(self.values.shape)} and {tuple(self.labels.shape)}"
            raise ConfigError(f"features must be [N, D] and labels [N], not empty, got {shapes}: flatten or align them")
        if self.labels.is_floating_point():
            raise ConfigError(f"labels must be whole numbers, got {self.labels.dtype}: convert them with .long()")
        object.__setattr__(self, "values", self.values.float())  # no copy of what is float32 already
        object.__setattr__(self, "labels", self.labels.long())
        if not torch.stack(self.values.aminmax()).isfinite().all():  # one fast pass, without a temporary
            raise StateError("features must be finite, but they hold NaN or infinity: check the weights and the images")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        """The number of named classes, or one more than the highest label."""
        return len(self.classes) if self.classes is not None else int(self.labels.max()) + 1


def extract_features(
    backbone: nn.Module,
    dataset: Any,
    config: FeatureConfig | None = None,
    *,
    cache: str | Path | None = None,
    device: torch.device | str | None = None,
) -> Features:
    """Run `backbone` over `dataset` of (normalised float image, label), in order, and prove that it was not changed.

    With `cache`, a folder that many backbones and datasets may share, features are written block by block to a
    memory-mapped file under a name derived from the weights, the dataset and the precision: killed and called again,
    the extraction resumes where it stopped; completed, it is only opened. Under `torch.distributed` each process
    extracts its share of the blocks (a cache must then be on storage that all of them see) and gets all features.
    """
    config = config or FeatureConfig()
    if len(dataset) == 0:
        raise ConfigError("a dataset must hold at least one image to have features, got none: check its folder")
    with unchanged(backbone) as weights:
        runner = FrozenBackbone(backbone, config, device)
        fingerprint = dataset_fingerprint(dataset, f"{weights} {backbone} {config.precision}") if cache else ""
        size = (len(dataset), runner.num_features(dataset))
        with open_store(cache, fingerprint, size=size, block=config.batch_size) as store:
            seconds = runner.fill(store, dataset)
            values, labels = store.finish()
    return Features(values, labels, class_names(dataset), *seconds)


def forward_features(backbone: nn.Module, images: Tensor) -> Tensor:
    """Pooled features [B, D] of images, checked to be of that shape; gradients are the caller's concern."""
    try:
        features: Tensor = backbone(images)
    except AssertionError as error:  # timm's way to say that a transformer has another size
        size = "x".join(str(side) for side in images.shape[-2:])
        raise ConfigError(f"the backbone takes no images of {size} ({str(error).rstrip('.')}): resize them") from None
    if not isinstance(features, Tensor) or features.ndim != 2:
        got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ConfigError(f"a backbone must return pooled features [N, D], got {got}: pool or flatten its output")
    return features


def classifier_of(backbone: nn.Module) -> str | None:
    """The name of the layer from features to ImageNet's classes that torchvision's and timm's networks end in."""
    layers = [(name, layer) for name, layer in backbone.named_modules() if isinstance(layer, nn.Linear)]
    name, last = layers[-1] if layers else ("", None)
    ends_in_classes = last is not None and last.out_features in (1000, 21841, 21843)
    return name if ends_in_classes and name.split(".")[0] in ("fc", "head", "heads", "classifier") else None


class FrozenBackbone:
    """The network on its device, ready for batches; whoever uses it holds `unchanged` around."""

    def __init__(self, backbone: nn.Module, config: FeatureConfig, device: torch.device | str | None) -> None:
        self.config = config
        first = next(iter(backbone.parameters()), torch.empty(0))
        self.device = torch.device(device) if device is not None else first.device
        self.backbone = backbone.to(self.device)
        if (name := classifier_of(backbone)) is not None:
            warnings.warn(
                f"features are what precedes a classifier, but this network ends in one ({name}), whose scores are "
                f"measured instead: replace it by nn.Identity()",
                stacklevel=3,
            )

    def __call__(self, images: Tensor) -> Tensor:
        return self.on_device(images).cpu()

    @torch.no_grad()
    def on_device(self, images: Tensor) -> Tensor:
        """The features where they were computed, for which the host does not wait."""
        images = self.sent(images)
        dtype = getattr(torch, self.config.precision)
        with torch.autocast(self.device.type, dtype=dtype, enabled=self.config.precision != "float32"):
            features = forward_features(self.backbone, images)
        return features.float()

    def sent(self, images: Tensor) -> Tensor:
        """The images where the network is, in its memory format; those that are there already stay what they are."""
        layout = torch.channels_last if self.config.channels_last and images.ndim == 4 else torch.preserve_format
        return images.to(self.device, non_blocking=True, memory_format=layout)

    def num_features(self, dataset: Any) -> int:
        ((images, _),) = load_batches(dataset, [[0]])
        return self(images).shape[1]

    def loaded(self, dataset: Any, batches: Sequence[Sequence[int]]) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of the dataset as this network wants them: pinned for a GPU."""
        return load_batches(
            dataset, batches, num_workers=self.config.num_workers, pin_memory=self.device.type == "cuda"
        )

    def fill(self, store: FeatureStore, dataset: Any) -> tuple[float, float]:
        """Compute this process's share of the missing blocks; returns seconds of (loading, forward)."""
        blocks = store.missing_blocks()[distributed.rank() :: distributed.world_size()]
        batches: Sequence[Sequence[int]] = [store.indices(block) for block in blocks]
        loading = forward = 0.0
        if not blocks:  # complete already: start no loader processes
            return loading, forward
        clock = time.perf_counter()
        for block, (images, labels) in zip(blocks, self.loaded(dataset, batches), strict=True):
            arrived = time.perf_counter()
            features = self(images)
            if not features.isfinite().all():
                raise StateError(f"features must be finite, but block {block} has NaN or infinity: check the weights")
            store.write(block, features, labels)
            loading, forward, clock = (
                loading + arrived - clock,
                forward + time.perf_counter() - arrived,
                time.perf_counter(),
            )
        return loading, forward
