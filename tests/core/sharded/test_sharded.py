"""Sharding is invisible: the gathered teacher is bit for bit the one in one piece."""

import json
import multiprocessing
from pathlib import Path

import pytest
import torch.multiprocessing as mp

from tests.core.sharded import ranks

WORLD_SIZE = 8


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bool]:
    """What all ranks found, by case; a case holds if it holds on every rank that took part."""
    folder = tmp_path_factory.mktemp("ranks")
    multiprocessing.set_forkserver_preload([ranks.__name__])  # torch is imported once, not by every rank
    # Daemons, or Python would wait for them at its exit when pytest's limit has ended the test.
    mp.start_processes(
        ranks.run, args=(WORLD_SIZE, str(folder)), nprocs=WORLD_SIZE, start_method="forkserver", daemon=True
    )
    found: dict[str, bool] = {}
    for rank in range(WORLD_SIZE):
        for name, holds in json.loads(Path(folder, f"{rank}.json").read_text()).items():
            found[name] = found.get(name, True) and holds
    return found


KINDS = [f"fsdp on {size}" for size in ranks.SIZES]
KINDS += [f"{cut} on 2 x 3" for cut in ("rows and columns", "rows twice", "replicas of shards")]


@pytest.mark.slow
@pytest.mark.parametrize("config", list(ranks.CONFIGS))
@pytest.mark.parametrize("kind", [*KINDS, "columns on 3"])
def test_the_gathered_teacher_is_the_one_in_one_piece(verdicts: dict[str, bool], kind: str, config: str) -> None:
    assert verdicts[f"{kind}: {config}"]


@pytest.mark.slow
@pytest.mark.parametrize("size", ranks.SIZES)
def test_in_a_real_loop_updates_and_evaluations_are_those_of_one_piece(verdicts: dict[str, bool], size: int) -> None:
    assert verdicts[f"training on {size}: attached"]
    assert verdicts[f"training on {size}: swapped"]


@pytest.mark.slow
def test_ranks_that_should_hold_the_same_shard_are_compared_and_drift_is_that_of_the_whole(
    verdicts: dict[str, bool],
) -> None:
    assert verdicts["watching: drift"]
    assert verdicts["watching: replicas"]


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 3, 8])
def test_saved_by_four_ranks_it_goes_on_with_another_number(verdicts: dict[str, bool], size: int) -> None:
    assert verdicts[f"checkpoint: from 4 to {size}"]
