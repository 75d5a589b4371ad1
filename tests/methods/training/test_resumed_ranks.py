"""Three and four ranks, where the order of a sum matters, resume to the bits of an undisturbed run."""

import os
import sys
from pathlib import Path

import pytest
import torch

from tests import processes
from tests.methods.training import tiny_training as tiny
from tests.methods.training.resumed_ranks import METHODS

pytestmark = pytest.mark.slow  # seven processes that train

WORLD_SIZES = (3, 4)


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which every group of ranks trained every method, straight and in two parts."""
    folder: Path = tmp_path_factory.mktemp("ranks")
    script = str(Path(__file__).with_name("resumed_ranks.py"))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, script, str(folder), *map(str, WORLD_SIZES)]
    finished = processes.run(command, env=environment, seconds=280)
    assert finished.returncode == 0, finished.stderr[-2000:]
    return folder


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_resumed_group_ends_with_the_bits_of_an_undisturbed_one(groups: Path, world_size: int, method: str) -> None:
    for rank in range(world_size):
        runs = torch.load(groups / str(world_size) / f"{method}-{rank}.pt", weights_only=True)
        tiny.assert_same_bits(runs["straight"], runs["resumed"])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_checkpoint_that_is_asked_for_comes_two_steps_later_and_leads_to_the_same_bits(
    groups: Path, world_size: int, method: str
) -> None:
    for rank in range(world_size):
        runs = torch.load(groups / str(world_size) / f"{method}-{rank}.pt", weights_only=True)
        assert runs["asked"] == [2, 3]
        # MoCo's are averaged over the ranks once more, and then round differently.
        rounded = [name for name in runs["straight"] if method == "moco" and "running_" in name]
        for name in rounded:
            torch.testing.assert_close(runs["ahead"].pop(name), runs["straight"].pop(name), rtol=1e-5, atol=1e-7)
        tiny.assert_same_bits(runs["straight"], runs["ahead"])
