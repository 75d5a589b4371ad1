"""One rank of a group that trains the tiny method: tiny_ranks.py RANK WORLD_SIZE FOLDER; what it saw goes to JSON."""

import contextlib
import json
import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from sts_core import temporal_moving_average
from sts_core.errors import StsError
from sts_methods.batch import Batch
from sts_methods.data import image_folders
from sts_methods.methods.base import StepResult
from tests.methods.training import tiny_training as tiny

SECONDS_OF_PATIENCE = 5
BANK = {f"m{m}": temporal_moving_average(m / 10) for m in (3, 5, 9)}


class _OneRankDiffers(tiny.TinyMethod):
    """A bug that happens in practice: at one step rank 1 alone changes a weight of the teacher."""

    def forward(self, batch: Batch) -> StepResult:
        if batch.step == 4 and dist.get_rank() == 1:
            with torch.no_grad():
                self.teacher.get_parameter("5.weight")[0, 0] += 1e-7
        return super().forward(batch)


class _OneRankIsNotFinite(tiny.TinyMethod):
    def forward(self, batch: Batch) -> StepResult:
        result = super().forward(batch)
        scale = float("nan") if batch.step == 2 and dist.get_rank() == 1 else 1.0
        return StepResult(result.loss * scale, result.metrics)


def _failure(method: Any, folder: Path, config: Any) -> str:
    try:
        tiny.fit(config, tiny.runtime(folder), method=method)
    except StsError as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def _train_bank(rank: int, folder: Path) -> None:
    """A bank of three over the ranks, undisturbed, crashed half-way and from a checkpoint that was asked for."""
    config = tiny.tiny_config(bank=BANK)
    straight = tiny.tiny_fit(config, tiny.runtime(folder / "bank"))
    with contextlib.suppress(tiny.CrashError):
        tiny.tiny_fit(config, tiny.CrashingRuntime(folder / "bank-crashed", 7))
    resumed = tiny.tiny_fit(config, tiny.runtime(folder / "bank-crashed"))
    tiny.tiny_fit(config, tiny.asked_runtime(folder / "bank-asked", after=3, copy_to=folder / "bank-ahead"))
    dist.barrier()  # rank 0 has copied it
    ahead = tiny.tiny_fit(config, tiny.runtime(folder / "bank-ahead"))
    for name, result in {"straight": straight, "resumed": resumed, "ahead": ahead}.items():
        held = {key: teacher.state_dict() for key, teacher in result.bank.items()}
        torch.save(held, folder / f"bank-{name}-{rank}.pt")


def _train_late(rank: int, world_size: int, folder: Path) -> float:
    """The last loss of a run whose rank 0 lists its images for longer than collectives of the group wait."""
    meeting = f"file://{folder}/late-meeting"
    patience = timedelta(seconds=SECONDS_OF_PATIENCE)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world_size, timeout=patience)
    listed = image_folders._images_below

    def slowly(root: Path) -> list[str]:
        time.sleep(1.5 * SECONDS_OF_PATIENCE if rank == 0 else 0)
        return listed(root)

    with patch.object(image_folders, "_images_below", slowly):
        late = tiny.tiny_fit(tiny.photos_config(folder / "photos"), tiny.runtime(folder / "late"))
    dist.barrier()
    dist.destroy_process_group()
    return late.metrics["loss"]


def main(rank: int, world_size: int, folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world_size)
    config = tiny.tiny_config(accumulation=2)
    seen: dict[str, Any] = {}
    straight = tiny.tiny_fit(config, tiny.runtime(folder / "straight"))
    torch.save(tiny.weights(straight), folder / f"straight-{rank}.pt")
    with contextlib.suppress(tiny.CrashError):
        tiny.tiny_fit(config, tiny.CrashingRuntime(folder / "crashed", 7))
    resumed = tiny.tiny_fit(config, tiny.runtime(folder / "crashed"))
    torch.save(tiny.weights(resumed), folder / f"resumed-{rank}.pt")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        moved = tiny.tiny_fit(config, tiny.runtime(folder / "alone"))
    seen["notice"] = [str(w.message) for w in caught]
    torch.save(tiny.weights(moved), folder / f"moved-{rank}.pt")
    _train_bank(rank, folder)
    differs = _OneRankDiffers(config.method, seed=0)
    verified = tiny.tiny_config(verify_ranks_every_steps=3)
    seen["differs"] = _failure(differs, folder / "differs", verified)
    seen["nan"] = _failure(_OneRankIsNotFinite(config.method, seed=0), folder / "nan", config)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        left_out = tiny.fit(
            tiny.tiny_config(accumulation=2, steps=5, on_nonfinite="warn"),
            tiny.runtime(folder / "left_out"),
            method=_OneRankIsNotFinite(config.method, seed=0),
        )
    torch.save(tiny.weights(left_out), folder / f"left_out-{rank}.pt")
    photos = tiny.tiny_fit(tiny.photos_config(folder / "photos"), tiny.runtime(folder / "skipping"))
    seen["photos"] = {name: photos.metrics[name] for name in ("skipped_images", "output_drift", "loss")}
    dist.barrier()
    dist.destroy_process_group()
    seen["late"] = _train_late(rank, world_size, folder)
    (folder / f"seen-{rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
