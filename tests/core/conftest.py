"""Fixtures of all tests of sts-core."""

import logging
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from tests.core.networks import Net
from tests.core.paper import PaperDraws

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _quiet_and_deterministic() -> Iterator[None]:
    logging.getLogger("sts_core").setLevel(logging.ERROR)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.fixture
def student() -> nn.Module:
    return Net()


@pytest.fixture
def draws() -> PaperDraws:
    return PaperDraws(seed=12)
