"""What evaluation is told of a training, in words that do not follow the fields of its config."""

import hashlib
import json
from typing import Any

from sts_core.fields import flattened, outcome_relevant
from sts_methods.methods.registry import method_name
from sts_methods.runs.resume import config_to_json
from sts_methods.training.config import TrainingConfig


def resolved(config: TrainingConfig) -> dict[str, Any]:
    """The config as JSON values, the method with its name."""
    values = config_to_json(config)
    return values | {"method": {"name": method_name(config.method), **values["method"]}}


def describe_training(config: TrainingConfig) -> dict[str, Any]:
    """The content of training.json, from which sts-eval's reports and comparisons know a run.

    `recipe` is a digest of all that training depends on beside its seed and its smoothing: runs that share it are seeds
    of one setting or differ in their teacher only. `conditions` is what the paper says of its own trainings.
    """
    plain = resolved(config)
    return {
        "seed": config.seed,
        "recipe": _recipe(config),
        "length": _length(config),
        "smoothing": plain["smoothing"],
        "data": plain["data"],
        "conditions": {name: value for name, value in _conditions(config).items() if value is not None},
        "settings": flattened(plain),
    }


def _recipe(config: TrainingConfig) -> str:
    values = [method_name(config.method), outcome_relevant(config, but_free=True)]
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def _length(config: TrainingConfig) -> str:
    whole = f"{config.steps} steps" if config.epochs is None else f"{config.epochs} epochs"
    stop = config.stop_after_epochs
    return whole if stop is None else f"{whole}, stopped after {stop} epochs"


def _conditions(config: TrainingConfig) -> dict[str, Any]:
    method, data, optimizer = config.method, config.data, config.optimizer
    own = {name: getattr(method, name, None) for name in ("backbone", "stem", "queue_size", "pseudo_labels")}
    return {
        "method": method_name(method),
        **own,
        "initial_weights": config.initial.weights,
        "dataset": data.dataset,
        "num_labels": data.num_labels,
        "unlabelled_ratio": data.unlabelled_ratio,
        "image_size": data.image_size,
        "augmentation": data.views,
        "optimizer": optimizer.name,
        "lr": optimizer.lr,
        "lr_schedule": optimizer.schedule,
        "weight_decay": optimizer.weight_decay,
        "sgd_momentum": optimizer.momentum,
        "warmup_epochs": optimizer.warmup_epochs,
        "global_batch_size": config.global_batch_size,
        "epochs": config.stop_after_epochs or config.epochs,
        "steps": config.steps,
        "momentum_schedule": config.momentum_schedule,
        "reduced_precision": None if config.precision == "float32" else config.precision,
    }
