"""The probes that need several ranks, each host in two processes over gloo."""

import json
import multiprocessing
import os
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path

import torch.multiprocessing as mp
from torch import distributed

from tests.core.conformance.hosts import HOSTS
from tests.core.conformance.probes import BY_RANKS, OK, Cell, probe

WORLD_SIZE = 2


def cells(hosts: Iterable[str], folder: Path) -> Mapping[tuple[str, str], Cell]:
    """What became of the hosts at the probes; where ranks differ, what is not ok."""
    folder.mkdir(parents=True, exist_ok=True)
    multiprocessing.set_forkserver_preload([__name__])  # torch is imported once, not by every rank
    arguments = (list(hosts), str(folder))
    # Daemons, or Python would wait for them at its exit when pytest's limit has ended the test.
    mp.start_processes(_run, args=arguments, nprocs=WORLD_SIZE, start_method="forkserver", daemon=True)
    one, other = (json.loads((folder / f"{rank}.json").read_text()) for rank in range(WORLD_SIZE))
    return {
        (host, name): Cell(*(mine if mine[0] != OK else theirs))
        for (host, name, mine), (_, _, theirs) in zip(one, other, strict=True)
    }


def _run(rank: int, hosts: list[str], folder: str) -> None:
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": WORLD_SIZE, "LOCAL_WORLD_SIZE": WORLD_SIZE}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 0, "TORCHELASTIC_RUN_ID": "conformance", "GROUP_RANK": 0}
    os.environ |= {name: str(value) for name, value in (place | address).items()}  # as torchrun does, for Lightning
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD_SIZE, timeout=timedelta(seconds=60)
    )
    found = [(host, name, probe(HOSTS[host], name, Path(folder, str(rank)))) for host in hosts for name in BY_RANKS]
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    distributed.barrier()
    distributed.destroy_process_group()
