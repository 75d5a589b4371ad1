"""The blocks of the guide run as they stand, one after the other."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

GUIDE = Path(__file__).parents[2] / "packages" / "sts-core" / "docs" / "loop.md"


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[DeviceMesh]:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield DeviceMesh("cpu", [0])
    distributed.destroy_process_group()


def test_every_block_of_the_guide_runs(tmp_path: Path, mesh: DeviceMesh) -> None:
    blocks = re.findall(r"```python[a-z ]*\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(blocks) == 8
    names: dict[str, object] = {"path": tmp_path / "checkpoint.pt", "mesh": mesh}
    for block in blocks:
        exec(block, names)
    teacher = names["sharded_teacher"]
    assert isinstance(teacher, torch.nn.Module)
    assert all(isinstance(weight, DTensor) for weight in teacher.parameters())
    assert getattr(names["smoother"], "step", 0) == 6
