"""The rows of the paper that can be repeated, what each was trained with, and which of them a run belongs to."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from sts_core.fields import is_free
from sts_eval.detection.transfer import VOC
from sts_eval.probes.few_labels import FEW_LABELS
from sts_eval.probes.linear.probe import LINEAR
from sts_eval.probes.linear.protocol import LinearProbeConfig, byol_protocol, moco_protocol

IMAGENET_TRAIN_IMAGES = 1_281_167
IMAGENET_TEST_IMAGES = 50_000
FIXMATCH_STEPS = 2**20
PRESERVE_PROBABILITIES = {"byol": 0.7, "moco": 0.5, "fixmatch": 0.5}  # paper, 4.1
MOMENTA = {"byol": 0.99, "moco": 0.999, "fixmatch": 0.999}  # the paper states none: the code bases it builds on
MOMENTUM_SCHEDULES = {"byol": "cosine", "moco": "constant", "fixmatch": "constant"}  # likewise
LARGE_VIEWS = {"stem": "imagenet", "image_size": 224}
FROM_SCRATCH = {"initial_weights": None}
FLOAT32 = {"reduced_precision": None}  # MoCo's and FixMatch's code, and what the paper says nothing else of
SGD = {"optimizer": "sgd", "sgd_momentum": 0.9}
COSINE_SGD = SGD | {"lr_schedule": "cosine", "weight_decay": 1e-4}
RECIPES: dict[str, dict[str, Any]] = {
    "byol": LARGE_VIEWS
    | COSINE_SGD
    | {"augmentation": "byol", "lr": (0.1, 0.05), "warmup_epochs": 10},  # lr .1: paper, .05: its code
    "moco": LARGE_VIEWS | COSINE_SGD | {"augmentation": "moco", "lr": 0.03, "queue_size": 65_536},
    "fixmatch": SGD
    | {"stem": "cifar", "image_size": 32, "augmentation": "fixmatch", "lr": 0.03, "unlabelled_ratio": 7}
    | {"lr_schedule": ("cosine", "cosine_7_16")}  # cosine: paper, cosine_7_16: FixMatch's code
    | {"pseudo_labels": "student"},  # "identical student and teacher network in the training phase"
}
"""How each method was trained: the paper, 4.1, and for stem and augmentation the code bases."""
FIXMATCH_WEIGHT_DECAYS = {"cifar10": 5e-4, "cifar100": 1e-3}  # paper
IDENTITY = ("method", "smoothing", "granularity")
"""What makes a run an instance of a row at all; everything else is whether it may stand beside it."""


@dataclass(frozen=True)
class PaperRow:
    """A row of a table, how its columns are measured, and the conditions it was trained under."""

    table: str
    row: str
    evaluation: str
    metrics: Mapping[str, str]
    """Metric of results.json for each column."""
    conditions: Mapping[str, Any]
    """What a run must share with it; of a tuple, one of its values."""

    def differences(self, conditions: Mapping[str, Any]) -> list[str]:
        """Where a run departs from the row, each as `epochs 2 instead of 200`."""
        wanted = {name: value if isinstance(value, tuple) else (value,) for name, value in self.conditions.items()}
        return [
            f"{name} {conditions.get(name, 'unknown')} instead of {' or '.join(map(_told, values))}"
            for name, values in wanted.items()
            if conditions.get(name) not in values
        ]

    def distance(self, conditions: Mapping[str, Any]) -> tuple[int, float]:
        """How many conditions differ, and by how much the numbers among them do, as a sum of |log ratios|."""
        pairs = [(conditions.get(name), value) for name, value in self.conditions.items()]
        numbers = [(a, b) for a, b in pairs if isinstance(a, int | float) and isinstance(b, int | float)]
        return len(self.differences(conditions)), sum(abs(math.log((a + 1) / (b + 1))) for a, b in numbers)

    def is_of(self, conditions: Mapping[str, Any]) -> bool:
        """Whether the run has this row's method, smoothing and granularity; long trainings are rows of their own."""
        names = (*IDENTITY, "epochs") if self.table == "state-of-the-art" else IDENTITY
        return all(conditions.get(name) == self.conditions[name] for name in names if name in self.conditions)


def _told(value: Any) -> str:
    return "none" if value is None else str(value)


TOP1_TOP5 = {"top-1": "top1", "top-5": "top5"}
DETECTION = {"AP50": "AP50", "AP": "AP", "AP75": "AP75"}


def _imagenet(method: str, smoothing: str, epochs: int = 200, granularity: str | None = None) -> dict[str, Any]:
    conditions: dict[str, Any] = {"method": method, "smoothing": smoothing}
    conditions |= {"dataset": "imagenet", "backbone": "resnet50"}
    conditions |= FROM_SCRATCH | FLOAT32 | {"epochs": epochs, "global_batch_size": 256}
    conditions |= _strengths(method, smoothing) | RECIPES[method]
    return conditions | ({"granularity": granularity or "layer"} if smoothing in ("se", "sts") else {})


def _strengths(method: str, smoothing: str) -> dict[str, Any]:
    """m, its schedule and p of a row; the paper does not say with which p it trained SE."""
    found: dict[str, Any] = {"momentum": MOMENTA[method], "momentum_schedule": MOMENTUM_SCHEDULES[method]}
    found = found if smoothing in ("tma", "sts") else {}  # m = 0 has nothing to schedule
    return found | ({"preserve_probability": PRESERVE_PROBABILITIES[method]} if smoothing == "sts" else {})


def _linear(table: str, row: str, conditions: dict[str, Any]) -> PaperRow:
    metrics = {"top-1": "top1"} if table == "granularity" else TOP1_TOP5
    return PaperRow(table, row, LINEAR.name, metrics, conditions)


def _few_labels(row: str, smoothing: str) -> list[PaperRow]:
    rows = []
    for dataset, backbone, counts in (
        ("cifar10", "wrn_28_2", (20, 40, 250, 4000)),
        ("cifar100", "wrn_28_8", (200, 400, 2500, 10000)),
    ):
        for labels in counts:
            conditions: dict[str, Any] = {"method": "fixmatch", "smoothing": smoothing}
            conditions |= {"dataset": dataset, "backbone": backbone}
            conditions |= FROM_SCRATCH | FLOAT32
            conditions |= {"num_labels": labels, "steps": FIXMATCH_STEPS, "global_batch_size": 64}
            conditions |= _strengths("fixmatch", smoothing) | RECIPES["fixmatch"]
            conditions["weight_decay"] = FIXMATCH_WEIGHT_DECAYS[dataset]
            column = f"CIFAR-{dataset.removeprefix('cifar')} {labels}"
            rows.append(PaperRow("few-labels", row, FEW_LABELS.name, {column: "top1"}, conditions))
    return rows


UNITS = {"LW": "layer", "CW": "channel", "NW": "neuron"}
ROWS: tuple[PaperRow, ...] = (
    *(
        _linear("effect-of-se", f"{name} {label}", _imagenet(name.lower(), smoothing))
        for name in ("MoCo", "BYOL")
        for label, smoothing in (("none", "none"), ("SE", "se"))
    ),
    *(
        _linear("effect-of-sts", f"{name} {label}", _imagenet(name.lower(), label.lower()))
        for name in ("MoCo", "BYOL")
        for label in ("TMA", "STS")
    ),
    *(
        _linear("state-of-the-art", f"Ours (BYOL + STS) {epochs}", _imagenet("byol", "sts", epochs))
        for epochs in (300, 1000)
    ),
    _linear("granularity", "TMA", _imagenet("byol", "tma")),
    *(
        _linear("granularity", f"{label} {unit}", _imagenet("byol", label.lower(), granularity=granularity))
        for label in ("SE", "STS")
        for unit, granularity in UNITS.items()
    ),
    PaperRow("voc", "Ours", VOC.name, DETECTION, _imagenet("byol", "sts")),
    *_few_labels("FixMatch", "tma"),
    *_few_labels("FixMatch (STS)", "sts"),
)


def rows_of(conditions: Mapping[str, Any], evaluation: str, named: Mapping[str, str] | None = None) -> list[PaperRow]:
    """The rows nearest to a run: the one it names, or those of its method and smoothing that depart least."""
    rows = [row for row in ROWS if row.evaluation == evaluation]
    wanted = (named.get("table"), named.get("row")) if named is not None else None
    rows = [row for row in rows if (row.table, row.row) == wanted] or [row for row in rows if row.is_of(conditions)]
    nearest = min((row.distance(conditions) for row in rows), default=None)
    return [row for row in rows if row.distance(conditions) == nearest]


def smoothing_kind(momentum: float, preserve_probability: float) -> str:
    """none, TMA, SE or STS, by the two numbers."""
    names = {(False, False): "none", (True, False): "TMA", (False, True): "SE", (True, True): "STS"}
    return names[momentum > 0, preserve_probability > 0]


def conditions_of(training: Mapping[str, Any]) -> dict[str, Any]:
    """The conditions of a run from its training.json; what that does not say is left out.

    The recipe is one of them, so that other recipes do not pass for other seeds.
    """
    smoothing = training.get("smoothing", {})
    found = dict(training.get("conditions", {}))
    found |= {"recipe": training["recipe"]} if "recipe" in training else {}
    if "momentum" in smoothing and "preserve_probability" in smoothing:
        found |= {name: smoothing[name] for name in ("momentum", "preserve_probability")}
        found["smoothing"] = smoothing_kind(smoothing["momentum"], smoothing["preserve_probability"]).lower()
        if found["smoothing"] in ("se", "sts"):
            found["granularity"] = smoothing.get("granularity", "layer")
    return found


def protocol_differences(method: str, entry: Mapping[str, Any]) -> list[str]:
    """Where a linear evaluation departs from the one behind the paper's rows of this method."""
    if "protocol" not in entry:
        return ["linear protocol unknown"]
    # As results.json holds them, so that a tuple equals a list.
    paper = asdict(byol_protocol() if method == "byol" else moco_protocol())
    left, right = (json.loads(json.dumps(values)) for values in (entry["protocol"], paper))
    used = right if left.get("solver") == "sgd" else ("solver",)  # an exact solver has no learning rate or epochs
    free = {field.name for field in fields(LinearProbeConfig) if is_free(field)}
    names = [name for name in used if name not in free and left.get(name) != right[name]]
    found = [f"linear {name} {left.get(name, 'unknown')} instead of {right[name]}" for name in names]
    if entry.get("diverged"):
        found.append("the linear classifier diverged")
    if left.get("augment") and entry.get("cropped_from", "unknown") != "whole images":
        found.append(f"random crops of {entry.get('cropped_from', 'unknown images')} instead of whole images")
    every = "evaluate_every_epochs"
    if entry.get("which") == "best" and left.get("solver") == "sgd" and left.get(every) != right[every]:
        best = [f"best of {-(-paper['epochs'] // (side.get(every) or 1))} evaluations" for side in (left, right)]
        found.append(" instead of ".join(best))
    return found


def size_differences(entry: Mapping[str, Any]) -> list[str]:
    """Where a linear evaluation had other numbers of images than ImageNet's."""
    sizes = {"num_train": IMAGENET_TRAIN_IMAGES, "num_test": IMAGENET_TEST_IMAGES}
    return [f"linear {k} {entry.get(k)} instead of {v}" for k, v in sizes.items() if entry.get(k) != v]
