"""The budget of a training step: what it may ask of a GPU, by phase, as rank 0 of 8.

A step that neither logs nor saves never waits for the device. The other numbers are those of the day they were last
lowered: whoever needs more has to say why, whoever needs less writes it down, in `catalog/hours.py` where the estimate
of hours counts with them.
"""

import math
from typing import Any

import pytest

from sts_pipelines.catalog.hours import COUNTED
from tests.null_gpu import machine
from tests.null_gpu.methods import METHODS

pytestmark = pytest.mark.slow

# Phase: operations, pageable copies, collectives, megabytes sent. BYOL and both MoCos: ResNet-50, 32 of 224 px; DINO:
# ViT-S/16 with eight small crops; FixMatch and Mean Teacher: WRN-28-2, 8 labelled and 56 unlabelled images of 32 px.
Budget = dict[str, tuple[int, int, int, float]]
BUDGETS: dict[str, Budget] = {
    method: {"data": (one.data, 0, 0, 0), "gradients": (one.gradients, 0, one.collectives, one.megabytes)}
    for method, one in COUNTED.items()
}
BUDGETS["fixmatch"]["teacher"] = (4, 0, 0, 0)
BUDGETS["moco_v3"]["student"] = (74, 0, 0, 0)  # LARS
OF_ALL: Budget = {"guard": (7, 0, 0, 0), "student": (3, 0, 0, 0), "teacher": (2, 0, 0, 0), "end": (0, 0, 0, 0)}


AT_MOST = {"byol": 2400, "moco": 1400, "moco_v3": 2450, "dino": 2500}
"""Operations of a whole step, the augmentation included."""


@pytest.fixture(scope="module")
def all_steps() -> dict[str, Any]:
    """One process for all methods: loading torch and timm takes longer than a dozen steps."""
    return machine.answer("tests.null_gpu.run_budget", *METHODS, seconds=900)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def steps(all_steps: dict[str, Any]) -> dict[str, Any]:
    return all_steps["float32"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("method", METHODS)
def test_a_step_stays_within_its_budget(method: str, steps: dict[str, Any]) -> None:
    found = steps[method]
    budget = OF_ALL | BUDGETS[method]
    assert found["phases"].keys() == budget.keys()
    spent = {phase: _spent(counts) for phase, counts in found["phases"].items()}
    over = {
        phase: f"{spent[phase]} of {budget[phase]}"
        for phase in budget
        if any(used > allowed for used, allowed in zip(spent[phase], budget[phase], strict=True))
    }
    assert over == {}
    assert found["waits"] == {}
    assert found["estimate"] == pytest.approx(found["peak"], rel=0.1), "what sts check says that a GPU needs"
    assert sum(counts["allocations"] for counts in found["phases"].values()) == 0  # past torch's cache
    assert _operations(found) <= AT_MOST.get(method, math.inf)


@pytest.mark.parametrize("method", METHODS)
def test_a_step_in_float16_does_not_wait_for_the_scale_of_its_gradients(method: str, all_steps: dict[str, Any]) -> None:
    assert all_steps["float16"][method]["waits"] == {}


@pytest.mark.parametrize("method", METHODS)
def test_the_estimate_of_hours_counts_with_what_a_step_asks_for(method: str, all_steps: dict[str, Any]) -> None:
    one, full, half = COUNTED[method], all_steps["float32"][method], all_steps["float16"][method]
    assert _operations(full) == pytest.approx(one.data + one.gradients + one.update, rel=0.01)
    assert _operations(half) - _operations(full) == pytest.approx(one.casts, abs=5)
    assert sum(counts["collectives"] for counts in full["phases"].values()) == one.collectives
    sent = sum(counts["collective_bytes"] for counts in full["phases"].values())
    assert sent / 1e6 == pytest.approx(one.megabytes, rel=0.03)


def _operations(found: dict[str, Any]) -> int:
    return sum(counts["operations"] for counts in found["phases"].values())


def _spent(counts: dict[str, Any]) -> tuple[int, int, int, float]:
    sent = counts["collective_bytes"] / 1e6
    return counts["operations"], counts["pageable_copies"], counts["collectives"], sent
