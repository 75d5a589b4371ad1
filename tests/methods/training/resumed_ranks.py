"""A group of ranks that trains BYOL and MoCo straight, in two parts, and from a checkpoint that was asked for.

resumed_ranks.py FOLDER WORLD_SIZE...
"""

import contextlib
import multiprocessing
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from sts_core import spatial_temporal_smoothing
from sts_methods.data.config import DataConfig
from sts_methods.methods.byol import ByolConfig
from sts_methods.methods.moco import MoCoConfig
from sts_methods.training.config import TrainingConfig
from sts_methods.training.loop import fit
from sts_methods.training.optimizers import OptimizerConfig
from tests.methods.training import tiny_training as tiny

NETWORK = {"backbone": "wrn_10_1", "stem": "cifar"}
METHODS: dict[str, Any] = {
    "byol": ByolConfig(**NETWORK, hidden_dim=256, projection_dim=32),  # type: ignore[arg-type]
    "moco": MoCoConfig(**NETWORK, dim=32, queue_size=48, bn_groups=12),  # type: ignore[arg-type]
}


def config(name: str) -> TrainingConfig:
    """Four steps of 24 digits, which 3 and 4 ranks share equally; BYOL's in two micro-batches."""
    return TrainingConfig(
        method=METHODS[name],
        smoothing=spatial_temporal_smoothing(0.9, 0.5, buffers="keep"),
        data=DataConfig(views=name, dataset="digits", image_size=8),  # type: ignore[arg-type]
        optimizer=OptimizerConfig(lr=0.5),
        global_batch_size=24,
        accumulation=2 if name == "byol" else 1,
        steps=4,
        checkpoint_every_steps=2,
        log_every_steps=100,  # MoCo's statistics differ between ranks after steps 1 and 3
    )


def train(rank: int, world_size: int, folder: Path) -> None:
    torch.set_num_threads(1)
    meeting, patience = f"file://{folder}/meeting", timedelta(seconds=100)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world_size, timeout=patience)
    for name in METHODS:
        straight = fit(config(name), tiny.runtime(folder / f"{name}-straight"))
        with contextlib.suppress(tiny.CrashError):
            fit(config(name), tiny.CrashingRuntime(folder / f"{name}-crashed", 2))
        resumed = fit(config(name), tiny.runtime(folder / f"{name}-crashed"))
        fit(config(name), tiny.asked_runtime(folder / f"{name}-asked", after=1, copy_to=folder / f"{name}-ahead"))
        dist.barrier()  # rank 0 has copied it
        asked = tiny.runtime(folder / f"{name}-ahead").checkpoints.steps()
        ahead = fit(config(name), tiny.runtime(folder / f"{name}-ahead"))
        runs = {"straight": straight, "resumed": resumed, "ahead": ahead}
        found = {"asked": asked, **{kind: tiny.weights(run) for kind, run in runs.items()}}
        torch.save(found, folder / f"{name}-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def main(folder: Path, world_size: int) -> None:
    """Ranks are forks of this process, which has no threads yet and imports for all what takes each seconds."""
    import sklearn.datasets  # noqa: F401
    import torch._dynamo  # noqa: F401

    folder.mkdir()
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=train, args=(rank, world_size, folder), daemon=True) for rank in range(world_size)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(timeout=120)
    assert [rank.exitcode for rank in ranks] == [0] * world_size


if __name__ == "__main__":
    for size in map(int, sys.argv[2:]):
        main(Path(sys.argv[1]) / str(size), size)
