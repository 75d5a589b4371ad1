"""The check that a training resumes: it passes for one that does, and names what differs for one that does not."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sts_core import Smoother, make_teacher, spatial_temporal_smoothing
from sts_core.testing import assert_resumes

FORGETFUL = {"smoother": "teacher", "optimizer": "student"}


def trainer(forgets: str = "") -> Any:
    """A loop with momentum SGD and an STS teacher that saves after every call all but what it forgets."""

    def train(folder: Path, steps: int) -> dict[str, Any]:
        torch.manual_seed(0)
        student = nn.Linear(4, 3)
        teacher = make_teacher(student)
        config = spatial_temporal_smoothing(0.9, 0.5, granularity="neuron")
        smoother = Smoother(student=student, teacher=teacher, config=config, seed=1)
        optimizer = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9)
        parts = {"student": student, "teacher": teacher, "smoother": smoother, "optimizer": optimizer}
        done, path = 0, folder / "last.pt"
        if path.exists():
            saved = torch.load(path, weights_only=True)
            done = saved.pop("step")
            for name in saved.keys() - {forgets}:
                parts[name].load_state_dict(saved[name])
        for step in range(done, steps):
            batch = torch.randn(2, 4, generator=torch.Generator().manual_seed(step))
            student(batch).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            smoother.update()
        torch.save({name: part.state_dict() for name, part in parts.items()} | {"step": steps}, path)
        return {"student": student.state_dict(), "teacher": teacher.state_dict()}

    return train


def test_a_loop_that_saves_everything_resumes() -> None:
    assert_resumes(trainer())
    with pytest.raises(AssertionError):
        assert_resumes(trainer("smoother"), cuts=[2])


@pytest.mark.parametrize("forgets", FORGETFUL)
def test_a_loop_that_forgets_something_is_caught_with_the_name_of_what_differs(forgets: str) -> None:
    message = rf"cut after step 1 must end with the same bits, but \d of 4 entries differ: {FORGETFUL[forgets]}"
    with pytest.raises(AssertionError, match=message):
        assert_resumes(trainer(forgets), steps=3)


def test_a_loop_that_differs_from_itself_is_told_so() -> None:
    with pytest.raises(AssertionError, match="two trainings that were not cut must end with the same bits"):
        assert_resumes(lambda folder, steps: {"weight": torch.rand(3)})
