"""Linear evaluation: how well a linear classifier does on the features of a frozen backbone."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sts_core import ConfigError
from sts_eval.evaluations import Evaluation, Metric, register_evaluation
from sts_eval.features.extraction import FeatureConfig, Features, FrozenBackbone, extract_features
from sts_eval.features.images import CentreCrop
from sts_eval.features.samples import check_labels, check_same_classes
from sts_eval.features.unchanged import unchanged
from sts_eval.probes.accuracy import allowed_ks
from sts_eval.probes.linear.protocol import LinearProbeConfig
from sts_eval.probes.linear.sources import AugmentedFeatures, CachedFeatures, TrainingFeatures
from sts_eval.probes.linear.training import ProbeRun, SgdProbe, solve_exactly, train_together

LINEAR = register_evaluation(
    Evaluation(
        name="linear",
        title="Linear evaluation",
        column="linear",
        metrics=(Metric("top1", "top-1"), Metric("top5", "top-5")),
        place=10,
        headline=1,
        identity=("protocol", "data"),
        row="protocol",
        in_training=True,
    )
)


@dataclass(frozen=True)
class HeadResult:
    """What one classifier of the grid reached; accuracies in percent, by k."""

    setting: float
    """Its learning rate, or its regularisation."""
    last: dict[int, float]
    best: dict[int, float]
    best_epoch: int
    """Epochs trained when top-1 was highest (the first of equals)."""
    selection: float
    """Top-1 after the last epoch on the data that the choice among classifiers is made on."""
    diverged: bool
    """Whether its weights stopped being finite."""


@dataclass(frozen=True)
class LinearProbeResult:
    """All classifiers of the grid and the one chosen."""

    heads: tuple[HeadResult, ...]
    chosen: int
    selected_on: str
    """`held-out`, `test` (optimistic with more than one classifier), or `single` where there was nothing to choose."""
    config: LinearProbeConfig
    num_train: int
    num_test: int
    cropped_from: str | None
    """What the augmented probe cut its random crops from: `whole images` or `tensors of side N`; None without them."""
    classifier: nn.Module = field(compare=False, repr=False)
    """The chosen classifier after the last epoch, from features to logits."""

    def with_backbone(self, backbone: nn.Module) -> nn.Module:
        """Backbone and classifier as one network from images to logits, for example for ImageNet-C."""
        return nn.Sequential(backbone, self.classifier)

    @property
    def last(self) -> dict[int, float]:
        """Accuracy of the chosen classifier after the last epoch, by k."""
        return self.heads[self.chosen].last

    @property
    def best(self) -> dict[int, float]:
        """Accuracy of the chosen classifier at its best evaluated epoch, by k."""
        return self.heads[self.chosen].best

    def entries(self, network: str) -> list[dict[str, Any]]:
        """The rows for results.json; an exact solver has no epochs, so that its last is not the best of any."""
        head = self.heads[self.chosen]
        common = {"evaluation": LINEAR.name, "network": network}
        kind = "learning_rate" if self.config.solver == "sgd" else "regularisation"
        details = {
            kind: head.setting,
            "selected_on": self.selected_on,
            "best_epoch": head.best_epoch,
            "diverged": head.diverged,
            "num_train": self.num_train,
            "num_test": self.num_test,
            **({} if self.cropped_from is None else {"cropped_from": self.cropped_from}),
            "protocol": asdict(self.config),
        }
        return [
            {**common, "metric": f"top{k}", "value": value, "which": which, **details}
            for which, accuracies in (("last", head.last), ("best", head.best))
            if which == "last" or self.config.solver == "sgd"
            for k, value in accuracies.items()
        ]


def linear_probe(
    train: Features | Any,
    test: Features | Any,
    config: LinearProbeConfig | None = None,
    *,
    backbone: nn.Module | None = None,
    features: FeatureConfig | None = None,
    cache: str | Path | None = None,
    state_file: str | Path | None = None,
    device: torch.device | str | None = None,
) -> LinearProbeResult:
    """Train linear classifiers on frozen features and count their correct answers on the test data.

    `train` and `test` are `Features`, or datasets that `backbone` turns into features (see `extract_features` for
    `features` and `cache`). With `config.augment`, `train` is a dataset of PIL images or normalised tensors that the
    backbone sees freshly cropped in every epoch (read once more before, for its labels, where it has no `targets`).
    With `state_file`, a killed SGD run resumes after its last evaluation. `config` is a protocol, such as
    `fast_protocol()`, `moco_protocol()` or `byol_protocol()`; `device` is where features and classifiers are computed.

    >>> labels = torch.arange(100) % 2
    >>> train = test = Features(torch.stack([labels, 1 - labels], dim=1), labels)
    >>> linear_probe(train, test, fast_protocol()).entries("teacher")[0]["value"]
    100.0
    """
    config = config or LinearProbeConfig()
    if config.augment:
        _check_images(train, backbone)
        assert backbone is not None, "just checked"
        files = {} if state_file is None else {"": state_file}
        together = _probes_of_crops(train, test, config, {"": backbone}, features, cache, files, device)
        return together[""]
    with unchanged(backbone if backbone is not None else nn.Identity()):
        tested = _features(test, backbone, features, cache, device)
        source = CachedFeatures(_features(train, backbone, features, cache, device), config)
        num_classes = _check(source, tested, config)
        ks = allowed_ks(num_classes)
        run = _run(source, tested, ks, config, num_classes, state_file, torch.device(device or "cpu"))
    return _summary(run, source, tested, ks, config)


def linear_probes(
    train: Any,
    test: Any,
    config: LinearProbeConfig | None = None,
    *,
    backbones: Mapping[str, nn.Module],
    features: FeatureConfig | None = None,
    cache: str | Path | None = None,
    state_files: Mapping[str, str | Path] | None = None,
    device: torch.device | str | None = None,
) -> dict[str, LinearProbeResult]:
    """The `linear_probe` of each backbone, with the same bits, on datasets of images.

    With `config.augment` all backbones see each crop, which is read, made and sent to the device once for all of them.
    They and their classifiers are then on the device together, but never more than one batch of images.
    """
    config, files = config or LinearProbeConfig(), dict(state_files or {})
    if config.augment and backbones:
        for backbone in backbones.values():
            _check_images(train, backbone)
        return _probes_of_crops(train, test, config, backbones, features, cache, files, device)
    common: dict[str, Any] = {"features": features, "cache": cache, "device": device}
    return {
        name: linear_probe(train, test, config, backbone=backbone, state_file=files.get(name), **common)
        for name, backbone in backbones.items()
    }


def _probes_of_crops(
    train: Any,
    test: Any,
    config: LinearProbeConfig,
    backbones: Mapping[str, nn.Module],
    features: FeatureConfig | None,
    cache: str | Path | None,
    state_files: Mapping[str, str | Path],
    device: torch.device | str | None,
) -> dict[str, LinearProbeResult]:
    """Probes that are trained on fresh crops, all in the same passes over the images."""
    probes: dict[str, SgdProbe] = {}
    labels: Tensor | None = None
    with ExitStack() as stack:
        for name, backbone in backbones.items():
            stack.enter_context(unchanged(backbone))
            tested = _features(test, backbone, features, cache, device)
            frozen = FrozenBackbone(backbone, features or FeatureConfig(), device)
            source = AugmentedFeatures(train, _view_of(test), config, frozen, labels=labels)
            labels = source.labels
            num_classes = _check(source, tested, config)
            probes[name] = SgdProbe(
                source,
                {"test": tested},
                allowed_ks(num_classes),
                config,
                num_classes=num_classes,
                device=torch.device(device or "cpu"),
                state_file=Path(state_files[name]) if name in state_files else None,
            )
        train_together(list(probes.values()))
    return {
        name: _summary(probe.run, probe.source, probe.splits["test"], probe.ks, config)
        for name, probe in probes.items()
    }


def _run(
    source: CachedFeatures,
    tested: Features,
    ks: tuple[int, ...],
    config: LinearProbeConfig,
    num_classes: int,
    state_file: str | Path | None,
    device: torch.device,
) -> ProbeRun:
    splits = {"test": tested}
    if source.held_out is not None:
        splits["held-out"] = source.held_out
    if config.solver != "sgd":
        return solve_exactly(source, splits, ks, config, num_classes=num_classes, device=device)
    file = Path(state_file) if state_file else None
    probe = SgdProbe(source, splits, ks, config, num_classes=num_classes, device=device, state_file=file)
    train_together([probe])
    return probe.run


def _view_of(test: Any) -> CentreCrop:
    """How the test images are shown: the augmented crops get their side, and where it is known their statistics."""
    if isinstance(test, Features):
        raise ConfigError("augment=True needs the test images to know their size, got features: pass the dataset")
    transform = getattr(test, "transform", None)
    return transform if isinstance(transform, CentreCrop) else CentreCrop(int(test[0][0].shape[-1]))


def _features(
    data: Any,
    backbone: nn.Module | None,
    features: FeatureConfig | None,
    cache: str | Path | None,
    device: torch.device | str | None,
) -> Features:
    if isinstance(data, Features):
        return data
    if backbone is None:
        raise ConfigError("a dataset needs a backbone to become features, got none: pass backbone= or Features")
    return extract_features(backbone, data, features, cache=cache, device=device)


def _check_images(train: Any, backbone: nn.Module | None) -> None:
    if backbone is None or isinstance(train, Features):
        raise ConfigError(
            "augment=True runs the backbone on fresh crops in every epoch, got features or no backbone: "
            "pass the dataset and backbone=, or augment=False"
        )


def _check(source: TrainingFeatures, tested: Features, config: LinearProbeConfig) -> int:
    """Raise where the two splits do not belong together; the number of classes."""
    check_same_classes(source.classes, tested.classes)
    if source.num_features != tested.values.shape[1]:
        sizes = f"{source.num_features} and {tested.values.shape[1]}"
        raise ConfigError(f"training and test features must have the same width, got {sizes}: use one backbone")
    names = source.classes or tested.classes
    highest = int(max(source.labels.max(), tested.labels.max()))
    num_classes = len(names) if names is not None else highest + 1
    for split, labels in (("training", source.labels), ("test", tested.labels)):
        check_labels(labels, num_classes, split=split, names=names, allow_missing=config.allow_missing_classes)
    return num_classes


def _summary(
    run: ProbeRun, source: TrainingFeatures, tested: Features, ks: Sequence[int], config: LinearProbeConfig
) -> LinearProbeResult:
    """The heads' accuracies and the choice among them."""
    measured = torch.stack(run.accuracies["test"])  # [evaluations, G, ks]
    assert run.heads is not None, "a run ends with its classifiers"
    heads, diverged = [], run.heads.diverged()
    for g, setting in enumerate(config.settings):
        best = int(measured[:, g, 0].argmax())
        at_last, at_best = (dict(zip(ks, measured[at, g].tolist(), strict=True)) for at in (-1, best))
        chosen_by = float(run.accuracies[run.selected_on][-1][g, 0])
        heads.append(HeadResult(setting, at_last, at_best, run.epochs[best], chosen_by, diverged[g]))
    selected_on = run.selected_on if len(heads) > 1 else "single"
    sizes = (source.num_rows, len(tested), source.cropped_from)
    return LinearProbeResult(tuple(heads), run.chosen, selected_on, config, *sizes, run.heads.classifier(run.chosen))
