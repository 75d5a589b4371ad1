"""Six hosts, each by its own loop in its installed version: accumulation, mixed precision, resuming, evaluation.

The teacher of each is compared with the one that a `Smoother` keeps of the same students.
"""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from sts_core.doctor import examine
from sts_core.testing import assert_resumes
from tests.core.integrations import loops, trainers
from tests.core.integrations.trained import State, Train, Trained, replayed

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

HOSTS: dict[str, tuple[Train, tuple[str, ...]]] = {
    "Lightning": (trainers.lightning, ("lightning",)),
    "transformers": (trainers.transformers, ("transformers", "accelerate")),
    "timm": (loops.timm, ("timm",)),
    "diffusers": (loops.diffusers, ("diffusers", "accelerate")),
    "AveragedModel": (loops.averaged_model, ()),
    "lightly": (trainers.lightly, ("lightly", "lightning")),
}
"""Each with the packages that must be installed."""


@pytest.fixture(params=list(HOSTS))
def train(request: pytest.FixtureRequest) -> Train:
    train, packages = HOSTS[request.param]
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed")
    return train


def assert_same(a: State, b: State) -> None:
    assert a.keys() == b.keys()
    different = [name for name, value in a.items() if not torch.equal(value, b[name])]
    assert not different, different


def assert_followed(trained: Trained, steps: int) -> None:
    """The student moved, and the teacher is what a plain loop makes of them."""
    weights = [next(iter(state.values())) for state in trained.followed]
    assert len(weights) == steps
    assert not torch.equal(weights[0], weights[-1])  # a step between may have been skipped by timm's GradScaler
    expected = replayed(trained)
    assert_same({name: trained.teacher[name] for name in expected}, expected)


def test_with_gradient_accumulation_the_teacher_moves_once_for_every_optimizer_step(
    train: Train, tmp_path: Path
) -> None:
    trained = train(tmp_path, 3, accumulate=2)
    assert_followed(trained, 3 - (train is loops.averaged_model))


def test_under_mixed_precision_the_teacher_is_float32_and_follows_the_float32_weights(
    train: Train, tmp_path: Path
) -> None:
    for name in ("plain", "mixed"):
        (tmp_path / name).mkdir()
    plain, mixed = train(tmp_path / "plain", 3), train(tmp_path / "mixed", 3, mixed=True)
    assert_followed(mixed, 3 - (train is loops.averaged_model))
    assert {value.dtype for value in mixed.teacher.values() if value.is_floating_point()} == {torch.float32}
    assert any(not torch.equal(value, mixed.student[name]) for name, value in plain.student.items())


def test_a_training_that_is_resumed_from_the_hosts_checkpoint_ends_with_the_same_bits(train: Train) -> None:
    def states(folder: Path, steps: int) -> dict[str, Any]:
        trained = train(folder, steps)
        return {"student": trained.student, "teacher": trained.teacher}

    assert_resumes(states, steps=4, cuts=[2])


def test_the_hosts_evaluation_computes_with_the_teacher_and_leaves_the_student_alone(
    train: Train, tmp_path: Path
) -> None:
    trained = train(tmp_path, 4)
    torch.testing.assert_close(trained.evaluated, trained.compute(trained.teacher))
    assert not torch.allclose(trained.evaluated, trained.compute(trained.student))
    last = trained.followed[-1]
    if train is not trainers.lightly:  # its teacher follows at the beginning of the next step
        assert_same(trained.student, last)


CHECKPOINTS = {
    trainers.lightning: "step=4.ckpt",
    trainers.transformers: "checkpoint-4",
    loops.timm: "last.pth.tar",
    loops.averaged_model: "last.pt",
    trainers.lightly: "step=4.ckpt",
}


def test_the_doctor_finds_the_teacher_in_what_the_host_saved(train: Train, tmp_path: Path) -> None:
    if train is loops.diffusers:
        pytest.skip("accelerate saves parameters without their names")
    trained = train(tmp_path, 4)
    findings = examine(tmp_path / CHECKPOINTS[train])
    assert not [finding.text for finding in findings if finding.wrong]
    names = [name for name, value in trained.teacher.items() if value.is_floating_point() and "running" not in name]
    gap, norm = (
        torch.cat([state[name].flatten() for name in names]).norm()
        for state in ({n: trained.teacher[n] - trained.student[n] for n in names}, trained.student)
    )
    assert any(f"is {gap / norm:.2%} of the weights' norm away" in finding.text for finding in findings)
    assert any("2 batch norm statistics, which have moved" in finding.text for finding in findings)
