import json
import os
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from sts_core import distributed
from sts_eval import CentreCrop, FeatureConfig, moco_protocol
from sts_eval.features.extraction import FrozenBackbone
from sts_eval.probes.linear.sources import AugmentedFeatures
from tests import processes

SCRIPT = Path(__file__).with_name("probe_worker.py")


def launch(folder: Path, world_size: int) -> list[dict[str, list[float]]]:
    """What each of `world_size` processes found."""
    folder.mkdir()
    workers = [
        processes.Process(
            [sys.executable, str(SCRIPT), str(folder)],
            env=os.environ | {"RANK": str(rank), "WORLD_SIZE": str(world_size), "OMP_NUM_THREADS": "1"},
            stderr=processes.PIPE,
        )
        for rank in range(world_size)
    ]
    for worker, (_, errors) in zip(workers, processes.finish_all(workers), strict=True):
        assert worker.returncode == 0, errors.decode()
    return [json.loads((folder / f"found-{rank}.json").read_text()) for rank in range(world_size)]


@pytest.mark.slow
def test_two_processes_find_what_one_finds(tmp_path):
    (alone,) = launch(tmp_path / "one", 1)
    both = launch(tmp_path / "two", 2)
    assert both[0] == both[1]
    assert both[0]["resumed"] == both[0]["moco"]
    named, computed = both[0].pop("late")  # one of the two came later than the group's time-out
    assert named == computed
    assert alone.keys() == both[0].keys()
    for name, values in alone.items():
        # A sum in another order can turn one of 898 digits at the boundary, never more.
        assert both[0][name] == pytest.approx(values, rel=1e-5, abs=0.23), name


def test_each_process_reads_its_share_of_labels_that_are_not_listed(monkeypatch):
    labels = torch.arange(1, 12)
    data, backbone = (
        TensorDataset(torch.randn(11, 1, 8, 8), labels),
        FrozenBackbone(nn.Flatten(), FeatureConfig(), "cpu"),
    )
    monkeypatch.setattr(distributed, "world_size", lambda: 3)
    shares = []
    for rank in range(3):  # the sum over processes is what sum_over_ranks_ would make of them
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        shares.append(AugmentedFeatures(data, CentreCrop(8), moco_protocol(batch_size=2), backbone).labels)
    assert [int((share > 0).sum()) for share in shares] == [4, 4, 3]
    assert torch.equal(sum(shares), labels)
