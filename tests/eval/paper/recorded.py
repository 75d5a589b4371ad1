"""Results as runs of the paper's recipe record them."""

import json

from sts_eval import RunResults, byol_protocol

IMAGENET = {
    "method": "byol",
    "smoothing": "sts",
    "granularity": "layer",
    "momentum": 0.99,
    "preserve_probability": 0.7,
    "dataset": "imagenet",
    "backbone": "resnet50",
    "epochs": 200,
    "global_batch_size": 256,
    "momentum_schedule": "cosine",
    "stem": "imagenet",
    "image_size": 224,
    "augmentation": "byol",
    "optimizer": "sgd",
    "lr": 0.1,
    "lr_schedule": "cosine",
    "weight_decay": 1e-4,
    "sgd_momentum": 0.9,
    "warmup_epochs": 10.0,
}


def linear(value, **changes):
    entry = {"evaluation": "linear", "network": "teacher", "metric": "top1", "value": value, "which": "best"}
    protocol = json.loads(json.dumps(byol_protocol().__dict__))  # as it comes back from results.json
    fed = {"num_train": 1_281_167, "num_test": 50_000, "cropped_from": "whole images"}
    return entry | {"protocol": protocol, **fed} | changes


def runs(values, conditions=IMAGENET, **changes):
    return [
        RunResults(run=f"run-{seed}", entries=(linear(value, **changes),), seed=seed, conditions=conditions)
        for seed, value in enumerate(values)
    ]
