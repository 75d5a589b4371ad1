"""Detection transfer from beginning to end: backbone in, AP, AP50 and AP75 out, with all that they depend on."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sts_core.distributed import gather_lists, rank, world_size
from sts_core.files import write_atomically
from sts_eval.detection.average_precision import Detections, VocScores, evaluate_voc
from sts_eval.detection.backends.choice import build_detector, require_backend, versions
from sts_eval.detection.backends.interface import Detector
from sts_eval.detection.backends.resnet import ResNetShape, infer_shape
from sts_eval.detection.config import DetectionConfig
from sts_eval.detection.conversion import compare_features, load_trunk_, trunk_state
from sts_eval.detection.samples import TestSamples, TrainingVisits
from sts_eval.detection.training import DetectionTraining, Metrics
from sts_eval.detection.voc import VocSplit, read_voc_split
from sts_eval.evaluations import Evaluation, Metric, register_evaluation
from sts_eval.features.backbone_source import Backbone, load_source

VOC = register_evaluation(
    Evaluation(
        name="voc",
        title="VOC detection transfer",
        column="VOC AP",
        metrics=tuple(Metric(name, name) for name in ("AP", "AP50", "AP75")),
        place=50,
        identity=("backend", "schedule", "data"),
        row="backend",
    )
)


@dataclass(frozen=True, kw_only=True)
class DetectionResult:
    """What detection transfer measured and under which conditions."""

    scores: VocScores
    """AP, AP50 and AP75 in percent."""
    backend: str
    """detectron2 or torchvision."""
    versions: Mapping[str, str]
    """Of python, torch, torchvision and the other packages that take part."""
    dataset: Mapping[str, int]
    """Images in each split, those for training first."""
    schedule: str
    """Iterations, batch size and learning rate in words."""
    initialisation: str
    """Where the backbone's weights come from."""
    matched_tensors: int
    """Tensors that the backbone brought: all of the trunk's, 318 for ResNet-50."""
    feature_difference: float
    """Largest relative difference between the features of backbone and detector before training."""
    num_workers: int
    """Processes that trained together."""
    not_comparable: tuple[str, ...]
    """Why the row may not stand beside the paper's; empty if it may."""
    config: DetectionConfig
    """All settings."""

    @property
    def comparable_with_paper(self) -> bool:
        """Whether the row may stand beside the paper's."""
        return not self.not_comparable

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values."""
        return {**asdict(self), "comparable_with_paper": self.comparable_with_paper}

    def entries(self, *, network: str, which: str = "last") -> list[dict[str, Any]]:
        """The entries of results.json: one per metric, each with its conditions."""
        conditions = {
            "backend": self.backend,
            "seed": self.config.seed,
            "versions": dict(self.versions),
            "dataset": dict(self.dataset),
            "schedule": self.schedule,
            "initialisation": self.initialisation,
            "comparable_with_paper": self.comparable_with_paper,
            "not_comparable": list(self.not_comparable),
        }
        values = {"AP": self.scores.ap, "AP50": self.scores.ap50, "AP75": self.scores.ap75}
        common = {"evaluation": VOC.name, "network": network, "which": which}
        return [{**common, "metric": metric, "value": value, **conditions} for metric, value in values.items()]


def detection_transfer(
    backbone: nn.Module | Backbone | str | Path,
    config: DetectionConfig,
    *,
    initialisation: str | None = None,
    folder: str | Path | None = None,
    device: torch.device | str | None = None,
    on_metrics: Callable[[Metrics], None] | None = None,
) -> DetectionResult:
    """Fine-tune a detector that starts from `backbone`, score it and say what the scores depend on.

    `backbone` is a bottleneck ResNet of torchvision or timm, a module that holds one, a saved backbone's path or a timm
    name; it is left as it is. `config` holds data, backend and schedule. Where torch.distributed is initialised
    (torchrun, Ray Train) every worker calls this, and all get the same result. `folder` receives
    rank 0's checkpoints, metrics.jsonl and result.json; a call with the same arguments resumes where an interrupted one
    stopped. `initialisation` names the weights in the result; `on_metrics` is called with every line of metrics.jsonl;
    `device` is the first GPU unless it is given.

    >>> from sts_eval.detection.backends.resnet import BottleneckResNet
    >>> from sts_eval.detection.synthetic import NARROW_SHAPE, narrow_config, write_synthetic_voc
    >>> root = write_synthetic_voc("drawn", splits={"trainval": 4, "test": 4})  # or a VOCdevkit
    >>> result = detection_transfer(BottleneckResNet(NARROW_SHAPE), narrow_config(root, iterations=2))
    >>> result.comparable_with_paper
    False
    """
    require_backend(config.backend)
    images = Path(config.data_root).expanduser()
    splits = [read_voc_split(images, name) for name in config.train_splits]
    test = read_voc_split(images, config.test_split)
    source = backbone if isinstance(backbone, Backbone) else load_source(backbone)
    state = trunk_state(source.module)
    shape = infer_shape(state)
    detector = build_detector(config, shape)
    matched = load_trunk_(detector, state)
    difference = compare_features(source.module, detector)
    detector.to(_device(device))
    visits = TrainingVisits([image for split in splits for image in split.images], config)
    root = None if folder is None else Path(folder)
    training = DetectionTraining(detector, visits, config, folder=root, on_metrics=on_metrics)
    training.run()
    training.finish()
    result = DetectionResult(
        scores=score_detector(detector, test, config),
        backend=config.backend,
        versions=versions(config.backend),
        dataset={split.name: len(split.images) for split in (*splits, test)},
        schedule=_describe_schedule(config),
        initialisation=initialisation or _describe_weights(source, state),
        matched_tensors=matched,
        feature_difference=difference,
        num_workers=world_size(),
        not_comparable=reasons_against_comparison(config, shape, (*splits, test)),
        config=config,
    )
    if root is not None and rank() == 0:
        write_atomically(root / "result.json", json.dumps(result.to_json(), indent=2) + "\n")
    return result


@torch.no_grad()
def score_detector(detector: Detector, split: VocSplit, config: DetectionConfig) -> VocScores:
    """Detect in every image of `split`, each worker in its share, and score all of them on every worker."""
    was_training = detector.training
    detector.eval()
    mine: list[Detections] = []
    for samples in TestSamples(split.images, config).of_this_worker():
        mine.extend(detector(samples))
    detector.train(was_training)
    return evaluate_voc(split, gather_lists(mine))


def reasons_against_comparison(
    config: DetectionConfig, shape: ResNetShape, splits: tuple[VocSplit, ...]
) -> tuple[str, ...]:
    """Why a result may not stand beside the paper's, one reason each; none if it may."""
    reasons = []
    if config.backend != "detectron2":
        reasons.append(f"the backend is {config.backend}, the paper's is detectron2")
    if shape != ResNetShape():
        reasons.append("the backbone is not ResNet-50")
    for name, (protocol, value) in config.differences().items():
        reasons.append(f"{name} is {value}, in the protocol {protocol}")
    for split in splits:
        if not split.is_official:
            reasons.append(f"{split.name} has {len(split.images)} images, which is not the published split")
    return tuple(reasons)


def _device(device: torch.device | str | None) -> torch.device:
    if device is not None:
        return torch.device(device)
    # Launchers such as Ray Train set the current device of each worker.
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def _describe_schedule(config: DetectionConfig) -> str:
    steps = ", ".join(str(step) for step in config.lr_steps)
    return (
        f"{config.iterations} iterations of {config.batch_size} images, learning rate {config.learning_rate}, "
        f"steps at {steps or 'none'}, warm-up {config.warmup_iterations}, precise BN {config.precise_bn_iterations}"
    )


def _describe_weights(source: Backbone, state: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(name.encode())
        digest.update(tensor.float().contiguous().numpy().tobytes())
    known = [f"{key} {source.manifest[key]}" for key in ("method", "network", "step") if key in source.manifest]
    name = str(source.manifest.get("backbone", type(source.module).__name__))
    return ", ".join([name, *known, f"sha256 {digest.hexdigest()[:16]}"])
