"""One process of a data-parallel evaluation of the digits; writes what rank 0 found, and what each rank holds.

RANK=0 WORLD_SIZE=2 probe_worker.py FOLDER
"""

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn

from sts_eval import (
    FeatureConfig,
    NeighboursConfig,
    byol_protocol,
    extract_features,
    fast_protocol,
    linear_probe,
    moco_protocol,
    nearest_neighbours,
)
from sts_eval.features import cache
from sts_eval.probes.linear.heads import ParallelHeads

SECONDS_OF_PATIENCE = 5


class Digits(torch.utils.data.Dataset):
    def __init__(self, start):
        digits = load_digits()
        self.images = (torch.tensor(digits.images[start::2], dtype=torch.float32)[:, None] - 4.9) / 6.0
        self.targets = torch.tensor(digits.target[start::2])

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        return self.images[index], int(self.targets[index])


def evaluate(folder: Path) -> dict[str, object]:
    """Every evaluation that runs data-parallel, in small."""
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten())
    train, test = Digits(0), Digits(1)
    config = FeatureConfig(batch_size=50)
    cached = extract_features(backbone, train, config, cache=folder / "cache")
    features = [extract_features(backbone, data, config) for data in (train, test)]
    protocols = {
        "moco": moco_protocol(augment=False, learning_rates=(0.3, 3.0), epochs=3, batch_size=100),
        "byol": byol_protocol(augment=False, learning_rates=(0.05, 0.2), epochs=4, batch_size=99),
        "lbfgs": fast_protocol(regularisations=(1e-3,)),
        "ridge": fast_protocol(solver="ridge", regularisations=(1e-3,)),
    }
    found: dict[str, object] = {
        name: [head.last[1] for head in linear_probe(*features, protocol).heads] for name, protocol in protocols.items()
    }
    augmented = byol_protocol(learning_rates=(0.2,), epochs=2, batch_size=128)
    found["augmented"] = [head.last[1] for head in linear_probe(train, test, augmented, backbone=backbone).heads]
    vote = nearest_neighbours(*features, NeighboursConfig(ks=(20,), temperatures=(0.07,)))
    found["knn"] = [vote.top1(20, 0.07)]
    found["resumed"] = resumed(features, protocols["moco"], folder)
    found["features"] = [float(features[0].values.double().sum()), float(cached.values.double().sum())]
    return found


def resumed(features, protocol, folder: Path) -> list[float]:
    """The last accuracies of a probe that was stopped in its third epoch; each rank sees a folder of its own only."""
    state_file = folder / f"disk-{os.environ['RANK']}" / "probe.pt"
    step, steps = ParallelHeads.step, []

    def stopped(self, *arguments, **options):
        steps.append(1)
        if len(steps) == 20:  # of 27
            raise KeyboardInterrupt
        return step(self, *arguments, **options)

    ParallelHeads.step = stopped
    try:
        linear_probe(*features, protocol, state_file=state_file)
    except KeyboardInterrupt:
        result = linear_probe(*features, protocol, state_file=state_file)
    ParallelHeads.step = step
    assert len(steps) == 20 + 9, "two epochs were done before"
    return [head.last[1] for head in result.heads]


class Slow(Digits):
    """One image is read for longer than collectives wait."""

    def __getitem__(self, index):
        time.sleep(1.5 * SECONDS_OF_PATIENCE if index == 0 else 0)
        return super().__getitem__(index)


def wait_for_the_late(folder: Path) -> list[float]:
    """Features that rank 0 takes its time to find a name for, and features that rank 1 takes its time to compute."""
    rank, backbone = int(os.environ["RANK"]), nn.Flatten()
    name = cache._fingerprint

    def slowly(*arguments):
        time.sleep(1.5 * SECONDS_OF_PATIENCE)
        return name(*arguments)

    with patch.object(cache, "_fingerprint", slowly):
        named = extract_features(backbone, Digits(0), cache=folder / "named")
    computed = extract_features(backbone, (Slow if rank == 1 else Digits)(0))
    return [float(features.values.double().sum()) for features in (named, computed)]


def join(folder: Path, name: str, *, seconds: float) -> None:
    """Meet the other processes, if there are any."""
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/{name}",
        timeout=timedelta(seconds=seconds),
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    target = Path(sys.argv[1])
    several = int(os.environ["WORLD_SIZE"]) > 1
    if several:
        join(target, "rendezvous", seconds=60)
    found = evaluate(target)
    if several:
        dist.destroy_process_group()
        join(target, "late", seconds=SECONDS_OF_PATIENCE)
        found["late"] = wait_for_the_late(target)
        dist.destroy_process_group()
    (target / f"found-{os.environ['RANK']}.json").write_text(json.dumps(found))
