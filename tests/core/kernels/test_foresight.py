"""Calling for memory is advice: whatever the addresses are, nothing happens but that time is saved."""

import torch

from sts_core import Smoother, make_teacher, temporal_moving_average
from sts_core.kernels.foresight import Foresight


def test_objects_of_every_kind_are_called_for_and_may_be_gone() -> None:
    objects: list[object] = [{}, {"a": None}, dict.fromkeys(map(str, range(99))), None, object()]
    tensors = [torch.ones(3), torch.ones(0), torch.nn.Parameter(torch.ones(2)).detach()]
    foresight = Foresight(objects, tensors)
    objects.clear()
    tensors.clear()
    foresight.call()
    assert foresight._count.value > 8
    Foresight([], []).call()


def test_only_what_this_processor_updates_is_called_for() -> None:
    student = torch.nn.Linear(3, 3)

    def foresight(backend: str) -> object:
        config, teacher = temporal_moving_average(0.9), make_teacher(student)
        return Smoother(student=student, teacher=teacher, config=config, seed=0, backend=backend)._watches._foresight

    assert foresight("native") is not None
    assert foresight("reference") is None
