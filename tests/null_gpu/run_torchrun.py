"""torchrun -m tests.null_gpu.run_torchrun FOLDER: processes that train and evaluate together on null GPUs."""

import json
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

from sts_core.distributed import rank, sendable, sum_over_ranks_, world_size
from sts_eval import FeatureConfig, NeighboursConfig, extract_features, nearest_neighbours
from sts_methods import LocalRuntime, fit
from tests.null_gpu.counters import answer
from tests.null_gpu.ranks import ddp_without_kernels
from tests.null_gpu.run_evaluations import Noise
from tests.null_gpu.training import counted_steps, training_config


def main(folder: Path) -> None:
    answer(0)
    runtime = LocalRuntime(folder, progress=False)
    with ddp_without_kernels(), counted_steps() as steps:
        result = fit(training_config("byol", world_size=world_size()), runtime)
    answer(0, up_to_bytes=1 << 40)
    network, config = result.backbone("teacher"), FeatureConfig(batch_size=16)
    features = [extract_features(network, Noise(num), config, device=runtime.device) for num in (64, 32)]
    vote = NeighboursConfig(ks=(5,), temperatures=(0.1,), allow_missing_classes=True)
    nearest_neighbours(*features, vote, device=runtime.device)
    mine = {
        "rank": rank(),
        "device": str(runtime.device),
        "backend": dist.get_backend_config(),
        "sent from": [sendable(torch.ones(1, device=place)).device.type for place in ("cpu", "cuda")],
        "a sum on the CPU": sum_over_ranks_(torch.ones(3)).tolist(),
        "collectives": steps[2]["gradients"]["collectives"],
        "step": result.step,
    }
    (folder / f"rank-{rank()}.json").write_text(json.dumps(mine))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]))
