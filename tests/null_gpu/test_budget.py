"""The budget of a training step: what it may ask of a GPU, by phase, as rank 0 of 8 in float32.

A step that neither logs nor saves never waits for the device. The other numbers are those of the day they were last
lowered: whoever needs more has to say why, whoever needs less writes it down here.
"""

import math
from typing import Any

import pytest

from tests.null_gpu import machine
from tests.null_gpu.methods import METHODS

pytestmark = pytest.mark.slow

# Phase: operations, pageable copies, collectives, megabytes sent. BYOL and both MoCos: ResNet-50, 32 of 224 px; DINO:
# ViT-S/16 with eight small crops; FixMatch and Mean Teacher: WRN-28-2, 8 labelled and 56 unlabelled images of 32 px.
Budget = dict[str, tuple[int, int, int, float]]
BUDGETS: dict[str, Budget] = {
    "byol": {"data": (161, 0, 0, 0), "gradients": (2132, 0, 170, 149.2)},
    "moco": {"data": (156, 0, 0, 0), "gradients": (972, 0, 22, 150.6)},
    "moco_v3": {"data": (161, 0, 0, 0), "gradients": (2162, 0, 174, 149.8), "student": (74, 0, 0, 0)},  # LARS
    "dino": {"data": (335, 0, 0, 0), "gradients": (1636, 0, 6, 178.0)},
    "fixmatch": {"data": (229, 0, 0, 0), "gradients": (562, 0, 52, 6.1), "teacher": (4, 0, 0, 0)},
    "mean_teacher": {"data": (28, 0, 0, 0), "gradients": (796, 0, 77, 6.2)},
}
OF_ALL: Budget = {"guard": (7, 0, 0, 0), "student": (3, 0, 0, 0), "teacher": (2, 0, 0, 0), "end": (0, 0, 0, 0)}


AT_MOST = {"byol": 2400, "moco": 1400, "moco_v3": 2450, "dino": 2500}
"""Operations of a whole step, the augmentation included."""


@pytest.fixture(scope="module")
def steps() -> dict[str, Any]:
    """One process for all methods: loading torch and timm takes longer than a dozen steps."""
    return machine.answer("tests.null_gpu.run_budget", *METHODS, seconds=900)  # type: ignore[no-any-return]


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
    assert sum(counts["operations"] for counts in found["phases"].values()) <= AT_MOST.get(method, math.inf)


def _spent(counts: dict[str, Any]) -> tuple[int, int, int, float]:
    sent = counts["collective_bytes"] / 1e6
    return counts["operations"], counts["pageable_copies"], counts["collectives"], sent
