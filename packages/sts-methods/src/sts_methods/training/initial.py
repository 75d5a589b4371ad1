"""The weights that a training starts from: a seed's, or those of a backbone that somebody has trained before."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from torch import nn

from sts_core import CheckpointError, ConfigError, Network
from sts_core.weights import digest_of, load_found_, load_strictly, pretrained_name, pretrained_network
from sts_methods.data.sources import Statistics
from sts_methods.methods.base import StudentTeacherMethod
from sts_methods.runs.backbone_files import load_backbone


@dataclass(frozen=True, kw_only=True)
class InitialConfig:
    """Trained weights for the backbones of student and teacher to start from; heads are always the seed's."""

    weights: str | None = None
    """A name of timm's pretrained weights, hf-hub:OWNER/NAME, a folder in the hub's format, a run folder, or a file in
    which anybody saved the network; None starts from the seed's."""
    network: Network = "teacher"
    """Which network of a run folder."""
    prefix: str | None = None
    """Where a file holds several networks, how the names of the one meant begin, as in module.encoder_k; None takes the
    one that its authors evaluate."""

    def __post_init__(self) -> None:
        if self.network not in get_args(Network):
            raise ConfigError(f"network must be teacher or student, got {self.network!r}", fields=("network",))
        if self.prefix is not None and self.weights is None:
            raise ConfigError(f"prefix is for a file in weights, got {self.prefix!r}", fields=("prefix", "weights"))


FROM_SEED = InitialConfig()
"""No trained weights."""


@dataclass(frozen=True, kw_only=True)
class InitialWeights:
    """Which weights a training started from, as its checkpoints and saved backbones remember it."""

    source: str
    """`initial.weights`."""
    found: str
    """Where they were in it."""
    sha256: str
    """Digest of all tensors of the backbone."""
    statistics: Statistics | None = None
    """Mean and deviation of the images that they were trained on, where that is known."""

    def __str__(self) -> str:
        return f"{self.source} ({self.found}; sha256 {self.sha256[:8]})"

    def described(self) -> dict[str, Any]:
        """For checkpoints and manifests."""
        return {name: value for name, value in asdict(self).items() if name != "statistics"}


def remembered(meta: Mapping[str, Any]) -> InitialWeights | None:
    """The weights that a checkpoint's run started from; one of an earlier version says nothing of them."""
    saved = meta.get("initial")
    return None if saved is None else InitialWeights(**saved)


def load_initial_(backbone: nn.Module, initial: InitialConfig, *, name: str, stem: str = "imagenet") -> InitialWeights:
    """Fill `backbone`, which `name` and `stem` describe, with all of its tensors or none."""
    source = str(initial.weights)
    path = Path(source).expanduser()
    try:
        found, statistics = _load_(backbone, path, initial)
    except CheckpointError as error:
        of = f"{name} with stem {stem}" if stem != "imagenet" else name
        raise CheckpointError(f"initial.weights must hold method.backbone, here {of}: {error}") from None
    return InitialWeights(source=source, found=found, sha256=digest_of(backbone), statistics=statistics)


def start_from_(method: StudentTeacherMethod, initial: InitialConfig, config: Any) -> InitialWeights:
    """Fill the backbones of student and teacher; `config` is the method's."""
    student, teacher = method.backbone("student"), method.backbone("teacher")
    name = getattr(config, "backbone", type(student).__name__)
    origin = load_initial_(student, initial, name=name, stem=getattr(config, "stem", "imagenet"))
    teacher.load_state_dict(student.state_dict())
    return origin


def warn_of_statistics(origin: InitialWeights, now: Statistics) -> None:
    """Say where images are not normalised as they were for the weights: the first layer then sees other numbers."""
    before = origin.statistics
    if before is None or _close(before, now):
        return
    flags = " ".join(
        f"--data.{name} {','.join(map(str, one))}" for name, one in zip(("mean", "std"), before, strict=True)
    )
    warnings.warn(
        f"{origin.source} was trained on images of mean {before[0]} and deviation {before[1]}, these have {now[0]} and "
        f"{now[1]}: {flags} normalises them alike",
        UserWarning,
        stacklevel=2,
    )


def _load_(backbone: nn.Module, path: Path, initial: InitialConfig) -> tuple[str, Statistics | None]:
    """Where the weights were found, and the statistics of their images."""
    if (name := pretrained_name(path) or pretrained_name(str(initial.weights))) is not None:
        trained = pretrained_network(name)
        load_strictly(backbone, trained.state_dict(), origin=name)
        return "pretrained, by timm", _statistics(getattr(trained, "pretrained_cfg", {}))
    if path.is_dir():
        path = path / f"{initial.network}.safetensors"
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist, and is no name of timm's: check the path or the name")
    if not path.with_suffix(".json").is_file() or path.suffix != ".safetensors":
        return f"behind {load_found_(backbone, path, prefix=initial.prefix)!r}", None
    trained, manifest = load_backbone(path)
    load_strictly(backbone, trained.state_dict(), origin=str(path))
    return f"{manifest['network']} of {manifest['method']} at step {manifest['step']}", _statistics(manifest)


def _statistics(described: Mapping[str, Any]) -> Statistics | None:
    mean, std = described.get("mean"), described.get("std")
    return None if mean is None or std is None else (_three(mean), _three(std))


def _three(values: Sequence[float]) -> tuple[float, float, float]:
    red, green, blue = values
    return (red, green, blue)


def _close(before: Statistics, now: Statistics) -> bool:
    return all(abs(a - b) < 1e-3 for old, new in zip(before, now, strict=True) for a, b in zip(old, new, strict=True))
